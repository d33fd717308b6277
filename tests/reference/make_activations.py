#!/usr/bin/env python3
"""Writes what transformers computes in float64 with each activation that is served: tests/testdata_activations.json.

    pip install torch transformers tokenizers
    tests/reference/make_activations.py

The weights and the inputs are those of two folders of make_hugging_face.py, of which one has a gate. By folder and
activation, the logits of every input.
"""

import json
import pathlib

import fixture_folders
import torch
import transformers

TESTS = pathlib.Path(__file__).resolve().parent.parent
ACTIVATIONS = ["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate",
               "relu", "silu", "swish", "quick_gelu", "mish", "tanh"]


def logits(folder, field, activation, entries):
    config = transformers.AutoConfig.from_pretrained(folder, **{field: activation})
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, config=config, dtype=torch.float64)
    rows = []
    for entry in entries:
        ids = torch.tensor([entry["token_ids"]])
        with torch.no_grad():
            output = model.eval()(input_ids=ids, attention_mask=(ids != config.pad_token_id).to(torch.int64))
        rows.append(output.logits[0].tolist())
    return rows


def main():
    golden = {}
    for name, field in (("bert_sequence", "hidden_act"), ("modernbert_sequence", "hidden_activation")):
        folder = TESTS / "testdata_hugging_face" / name
        entries = json.loads((folder / "golden.json").read_text())["inputs"][:2]
        golden[name] = {activation: logits(folder / "1", field, activation, entries) for activation in ACTIVATIONS}
    text = json.dumps(fixture_folders.rounded(golden), separators=(",", ":"))
    (TESTS / "testdata_activations.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
