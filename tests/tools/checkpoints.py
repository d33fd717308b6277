"""Random checkpoints and configs in the shapes of the SBM-Transformer authors, and a runner for convert.py."""

import contextlib
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import convert as convert_module  # noqa: E402
from torch_file import TorchFile  # noqa: E402

SMALL = {
    "learn_pos_emb": True,
    "tied_weights": False,
    "embedding_dim": 8,
    "transformer_dim": 8,
    "transformer_hidden_dim": 12,
    "head_dim": 6,
    "num_head": 2,
    "num_layers": 2,
    "vocab_size": 20,
    "max_seq_len": 16,
    "dropout_prob": 0.1,
    "pooling_mode": "MEAN",
    "num_classes": 3,
    "attn_type": "sbm",
    "num_clusters": 4,
    "sbm_type": "BMS+SB",
}


def state_dict(config: dict, dual: bool = False, seed: int = 0) -> dict:
    """The authors' keys, in their order, with random float32 values."""
    width, hidden = config["transformer_dim"], config["transformer_hidden_dim"]
    heads, d, k = config["num_head"], config["head_dim"], config["num_clusters"]
    shapes = {
        "model.embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "model.embeddings.position_embeddings.weight": (config["max_seq_len"], width),
    }

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[name + ".weight"], shapes[name + ".bias"] = (outputs, inputs), (outputs,)

    def norm(name: str) -> None:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (width,)

    tied = config["tied_weights"]
    for prefix in ["transformer"] if tied else [f"transformer_{i}" for i in range(config["num_layers"])]:
        prefix = f"model.{prefix}."
        norm(prefix + "norm1")
        for part in ("W_q", "W_k", "W_v"):
            linear(prefix + "mha." + part, heads * d, width)
        if config["attn_type"] == "sbm":
            shapes[prefix + "mha.attn.clusters"] = (heads, k, d)
            linear(prefix + "mha.attn.proj.0", d, d)
            linear(prefix + "mha.attn.proj.2", d, d)
        linear(prefix + "mha.ff", width, heads * d)
        norm(prefix + "norm2")
        linear(prefix + "mlpblock.0", hidden, width)
        linear(prefix + "mlpblock.3", width, hidden)
    norm("model.norm")
    linear("seq_classifer.mlpblock.0", hidden, width * (4 if dual else 1))
    linear("seq_classifer.mlpblock.2", config["num_classes"], hidden)
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_authors(folder: str, tensors: dict, config: object, name: str = "task_sbm_output") -> tuple:
    """Writes <name>.model (archive name = file stem, location cuda:0) and <name>.json; returns both paths."""
    checkpoint, table = os.path.join(folder, name + ".model"), os.path.join(folder, name + ".json")
    TorchFile({"model_state_dict": tensors}).write(checkpoint, archive=name)
    with open(table, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return checkpoint, table


def convert(*arguments: str) -> SimpleNamespace:
    """Runs convert.py's main here: returncode, stdout, stderr. An exception that it lets through fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = convert_module.main(list(arguments))
        except SystemExit as end:  # argparse
            code = end.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def convert_process(*arguments: str) -> subprocess.CompletedProcess:
    """Runs tools/convert.py as a program, with this Python."""
    command = [sys.executable, os.path.join(ROOT, "tools", "convert.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def read_model(directory: str) -> tuple:
    """(config, name -> float32 array) of a written model."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        data = file.read()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[start + first : start + last], "<f4").reshape(entry["shape"])
    return config, tensors
