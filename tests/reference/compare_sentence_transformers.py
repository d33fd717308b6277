#!/usr/bin/env python3
"""Compares Edgewise with the installed sentence-transformers on folders that its save() writes now. Run by hand, with
the programs built.

    pip install torch sentence-transformers
    tests/reference/compare_sentence_transformers.py

Models of several families with random weights are saved as sentence encoders (each way of pooling, dense layers,
prompts, limits of texts, fewer dimensions) and as cross-encoders. Prints, for each, how far embeddings are from what
encode gives in float64, and scores from predict. It fails where a number is off by more than 1e-5.
"""

import json
import pathlib
import sys
import tempfile

import make_sentence_folders as folders
import torch
import transformers
from sentence_transformers import __version__, models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

from edgewise_process import Server  # noqa: E402

MOST = 1e-5
SIZES = {"vocab_size": folders.VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 96, "max_position_embeddings": 48}
DISTIL = {"vocab_size": folders.VOCABULARY, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96,
          "max_position_embeddings": 48}
DECODER = {**SIZES, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"vocab_size": folders.VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 48}
MODERN = {**SIZES, "local_attention": 8, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
          "cls_token_id": 2, "sep_token_id": 3}
FAMILIES = {
    "bert": ("BertModel", SIZES, "bert"),
    "roberta": ("RobertaModel", {**SIZES, "max_position_embeddings": 320, "pad_token_id": 1}, "roberta"),
    "mpnet": ("MPNetModel", {**SIZES, "max_position_embeddings": 320, "pad_token_id": 1}, "mpnet"),
    "distilbert": ("DistilBertModel", DISTIL, "distilbert"),
    "modernbert": ("ModernBertModel", MODERN, "modernbert"),
    "gpt2": ("GPT2LMHeadModel", GPT2, "gpt2"),
    "llama": ("LlamaForCausalLM", DECODER, "gpt2"),
    "qwen2": ("Qwen2ForCausalLM", DECODER, "gpt2"),
    "qwen3": ("Qwen3ForCausalLM", {**DECODER, "head_dim": 16}, "gpt2"),
}
TANH, NONE, GELU, SIGMOID = torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU(), torch.nn.Sigmoid()


def pooling(mode, **more):
    return lambda: models.Pooling(64, pooling_mode=mode, **more)


def cases():
    """As those of make_sentence_folders."""
    prompts = {"prompts": folders.PROMPTS}
    limit = {"transformer": {"max_seq_length": 13}}
    for family, model in FAMILIES.items():
        for mode in ("mean", "cls", "lasttoken"):
            yield f"{family}_{mode}", (model, [pooling(mode), models.Normalize], {**prompts, "default_prompt_name": "query"})
        yield f"{family}_limit", (model, [pooling("mean")], {**limit, **prompts})
        yield f"{family}_excluded", (model, [pooling("mean", include_prompt=False)], {**prompts, "truncate_dim": 24})
        yield f"{family}_excluded_cls", (model, [pooling("cls", include_prompt=False)], prompts)
        layers = [folders.dense(64, 128, GELU), folders.dense(128, 80, TANH), folders.dense(80, 32, NONE, bias=False)]
        yield f"{family}_dense", (model, [pooling("mean"), *layers, models.Normalize], {})
        if family in ("bert", "roberta", "distilbert", "modernbert", "mpnet"):
            kind, sizes, tokenizer = model
            head = kind.replace("Model", "ForSequenceClassification")
            for labels in (1, 3):
                yield f"{family}_scores{labels}", ((head, {**sizes, "num_labels": labels}, tokenizer), {"max_length": 20})
            yield f"{family}_sigmoids", ((head, {**sizes, "num_labels": 3}, tokenizer), {"activation_fn": SIGMOID})
            yield f"{family}_logits", ((head, {**sizes, "num_labels": 1}, tokenizer), {"activation_fn": NONE})


def numbers_of(prediction, name):
    if name.endswith("_sigmoids"):
        return prediction["probabilities"]
    return prediction.get("embedding") or prediction.get("values") or prediction["logits"]


def compare(server, name, entries, temporary):
    """The largest difference of any number."""
    inputs = pathlib.Path(temporary) / "inputs.jsonl"
    fields = {"text": "text", "second": "second_text", "prompt_name": "prompt_name"}
    inputs.write_text("".join(json.dumps({fields[key]: entry[key] for key in fields if key in entry}) + "\n"
                              for entry in entries))
    several = len(entries[0].get("scores", [])) > 1
    result = server.cli("predict", "--model", name, "--input", str(inputs), "--json", "--truncate=tail",
                        *["--logits"] * several)
    if result.returncode != 0:
        raise SystemExit(f"{name}: {result.stderr or result.stdout}")
    most = 0.0
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    for entry, answer in zip(entries, answers, strict=True):
        got, wanted = numbers_of(answer["predictions"][0], name), entry.get("embedding") or entry["scores"]
        most = max([most, *(abs(one - other) for one, other in zip(got, wanted, strict=True))])
    return most


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary) / "models"
        wanted = {}
        for seed, (name, case) in enumerate(cases()):
            folders.save(repository / name / "1", case, seed)
            wanted[name] = folders.texts(repository / name / "1", case)
        with Server(str(repository)) as server:
            for name, entries in wanted.items():
                most = compare(server, name, entries, temporary)
                wrong += not most <= MOST
                print(f"{name:24} {len(entries):3} texts, off by at most {most:.1e}{' TOO FAR' * (not most <= MOST)}")
    print(f"sentence-transformers {__version__}, transformers {transformers.__version__}: "
          f"{len(wanted)} folders, {wrong} off by more than {MOST:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
