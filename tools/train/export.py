"""Writes and reads an entry of a model repository: config.json and model.safetensors (docs/model-format.md)."""
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]


def entry(name):
    return ROOT / "examples" / "models" / name / "1"


def write(model, config, folder):
    """Writes the twin `model` as F32 tensors; its state_dict already has the format's names and shapes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(t.detach().numpy(), dtype=np.float32)
               for name, t in model.state_dict().items()}
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "model.safetensors").chmod(0o644)     # a server may run as another user
    vocabulary = config.get("tokenizer", {}).get("vocabulary")
    text = json.dumps(config if vocabulary is None else
                      {**config, "tokenizer": {**config["tokenizer"], "vocabulary": "@"}}, indent=2)
    if vocabulary is not None:   # on one line: thousands of words otherwise take a line each
        text = text.replace('"@"', json.dumps(vocabulary, ensure_ascii=False))
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def read(folder):
    """-> (config, {tensor name: float32 array})"""
    folder = Path(folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), \
        load_file(str(folder / "model.safetensors"))


def write_result(name, result):
    path = ROOT / "tools" / "train" / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result) + "\n")


def write_examples(path, examples):
    """One JSON object a line: {"text": ...} or {"token_ids": [...]}, with "label" or "labels"."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example, separators=(",", ":"), ensure_ascii=False) + "\n")
