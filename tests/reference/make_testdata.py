#!/usr/bin/env python3
"""Makes tests/testdata: small models with random weights, and their logits by the float64 reference.

    /usr/bin/python3 tests/reference/make_testdata.py [folder]

Each case is a folder <case>/1/{config.json, model.safetensors} and <case>/golden.json, a list of
{"token_ids", "second" (pairs), "graph" (sampled models), "logits", "expected_edges" (sampled models)}.
`logits` has C numbers; for token classification one row per position as sent, null for a pad. `expected_edges` is the
expected number of distinct edges per layer and head, each layer's input being what the graph makes of it.
The output depends on nothing but this file: a test makes it again and compares.
"""

import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from edgewise_reference import Reference  # noqa: E402

_MEAN = {"kind": "mean", "divisor": "valid"}
_PADDED_MEAN = {"kind": "mean", "divisor": "max_length"}
_SBM = {"kind": "sbm", "num_clusters": 12, "law": "bernoulli", "exploration": 0.01}
_BASE = {
    "task": "sequence-classification",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "pooling": _MEAN,
    "num_labels": 5,
    "tokenizer": {"kind": "none"},
    "attention": {"kind": "dense"},
}

# Each case: what differs from _BASE; "block_matrix" asks for that optional tensor.
CASES = {
    "dense": {},
    "dense-classifier-hidden": {"classifier_hidden_size": 20, "pooling": _PADDED_MEAN},
    "dense-tied-cls": {"tied_layers": True, "num_hidden_layers": 3, "pooling": {"kind": "cls"}, "cls_token_id": 39},
    "dense-pair": {"task": "pair-classification", "classifier_hidden_size": 20, "num_labels": 3},
    "dense-tokens": {"task": "token-classification", "pooling": None, "position_embedding": "sinusoidal"},
    "dense-post-norm": {"norm_position": "post", "hidden_act": "relu", "pad_token_id": -1, "layer_norm_eps": 1e-3},
    "dense-wide-heads": {"num_attention_heads": 3, "head_dim": 12, "position_embedding": "none", "pad_token_id": 7},
    "sbm": {"attention": _SBM},
    "sbm-padded-mean": {
        "attention": {**_SBM, "law": "poisson_set", "exploration": 0.05},
        "pooling": _PADDED_MEAN,
        "classifier_hidden_size": 20,
    },
    "sbm-tied": {"attention": {**_SBM, "self_loops": True}, "tied_layers": True, "num_hidden_layers": 3},
    "sbm-cls": {"attention": {**_SBM, "local_window": 5}, "pooling": {"kind": "cls"}, "cls_token_id": 39},
    "sbm-pair": {
        "task": "pair-classification",
        "attention": _SBM,
        "classifier_hidden_size": 20,
        "pooling": _PADDED_MEAN,
        "num_labels": 2,
    },
    "sbm-tokens": {
        "task": "token-classification",
        "attention": {**_SBM, "law": "poisson_multi"},
        "pooling": None,
        "num_hidden_layers": 1,
    },
    "sbm-post-norm": {"attention": {**_SBM, "exploration": 0.0}, "norm_position": "post"},
    "sbm-block-matrix": {
        "attention": {**_SBM, "num_clusters": 8},
        "num_attention_heads": 3,
        "head_dim": 8,
        "block_matrix": True,
    },
    "mixed-layers": {"attention": [_SBM, {"kind": "dense"}], "budget_shares": [2.0, 1.0]},
}


def make_config(case: str) -> tuple:
    """(config.json as a dict, whether the block matrix is given)."""
    config = {**_BASE, **CASES[case], "description": f"random weights for tests: {case}"}
    block_matrix = config.pop("block_matrix", False)
    return {key: value for key, value in config.items() if value is not None}, block_matrix


def make_tensors(config: dict, block_matrix: bool, rng: np.random.Generator) -> dict:
    """name -> float32 array, scaled so that logits are of the order of 1 and depend on every part of the model."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", width // heads)
    hidden = config["intermediate_size"]
    tensors = {}

    def normal(name: str, shape: tuple, scale: float, mean: float = 0.0) -> None:
        tensors[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        normal(name + ".weight", (outputs, inputs), gain / np.sqrt(inputs))
        normal(name + ".bias", (outputs,), 0.2)

    def norm(name: str) -> None:
        normal(name + ".weight", (width,), 0.2, 1.0)
        normal(name + ".bias", (width,), 0.2)

    normal("embeddings.word.weight", (config["vocab_size"], width), 1.0)
    if config.get("position_embedding", "learned") == "learned":
        normal("embeddings.position.weight", (config["max_position_embeddings"], width), 0.7)
    for layer in range(1 if config.get("tied_layers") else config["num_hidden_layers"]):
        prefix = f"layers.{layer}."
        attention = config["attention"]
        attention = attention[layer] if isinstance(attention, list) else attention
        norm(prefix + "attention_norm")
        for part in ("query", "key", "value"):
            linear(prefix + "attention." + part, heads * head_dim, width, 1.3)
        linear(prefix + "attention.output", width, heads * head_dim, 1.5)
        if attention["kind"] == "sbm":
            k = attention["num_clusters"]
            normal(prefix + "attention.clusters", (heads, k, head_dim), 1.0)
            linear(prefix + "attention.membership.0", head_dim, head_dim, 1.5)
            linear(prefix + "attention.membership.1", head_dim, head_dim, 1.5)
            if block_matrix:  # asymmetric; the heads sum to 0.9, 0.8, ...
                block = rng.exponential(1.0, (heads, k, k)) ** 2
                total = block.sum(axis=(1, 2), keepdims=True)
                share = 0.9 - 0.1 * np.arange(heads)[:, None, None]
                tensors[prefix + "attention.block_matrix"] = (share * block / total).astype(np.float32)
        norm(prefix + "mlp_norm")
        linear(prefix + "mlp.up", hidden, width, 1.3)
        linear(prefix + "mlp.down", width, hidden, 1.3)
    if config.get("norm_position", "pre") == "pre":
        norm("final_norm")
    features = width * (4 if config["task"] == "pair-classification" else 1)
    gain = 3.0 if config.get("pooling", {}).get("kind") == "mean" else 1.5  # a mean over tokens is small
    if config.get("classifier_hidden_size", 0):
        linear("classifier.hidden", config["classifier_hidden_size"], features, gain)
        features = config["classifier_hidden_size"]
    linear("classifier.output", config["num_labels"], features, gain)
    return tensors


def write_model(directory: str, config: dict, tensors: dict) -> None:
    """config.json and model.safetensors (a header padded to 8 bytes, then the tensors end to end)."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.astype("<f4").tobytes())


def make_inputs(config: dict, rng: np.random.Generator) -> list:
    """Token ids: full length, short, length 1, interior, trailing, both kinds of and leading pads, a lone token."""
    length, pad = config["max_position_embeddings"], config.get("pad_token_id", 0)
    words = [i for i in range(config["vocab_size"]) if i not in (pad, config.get("cls_token_id"))]

    def tokens(n: int) -> np.ndarray:
        return rng.choice(words, n)

    if pad < 0:
        return [tokens(n).tolist() for n in (length, 17, 2, 1)]
    interior = tokens(23)
    interior[[3, 4, 11, 20]] = pad
    trailing = tokens(30)
    trailing[19:] = pad
    both = tokens(length)
    both[rng.random(length) < 0.3] = pad
    both[-5:] = pad
    leading = tokens(9)
    leading[:2] = pad
    lone = np.full(12, pad)
    lone[7] = words[5]
    inputs = [tokens(length), tokens(17), tokens(1), interior, trailing, both, leading, lone]
    return [[int(i) for i in ids] for ids in inputs]


def make_layer(valid: np.ndarray, heads: int, density: float, rng: np.random.Generator) -> dict:
    """A random graph of one layer: about `density` of the valid pairs, and about a fifth of the rows without edges."""
    result = []
    for _ in range(heads):
        edges = rng.random((len(valid), len(valid))) < density
        edges[rng.random(len(valid)) < 0.2] = False
        if density >= 1.0:
            edges[:] = True
        edges &= np.outer(valid, valid)
        offsets = np.concatenate([[0], np.cumsum(edges.sum(axis=1))])
        result.append({"row_offsets": offsets.tolist(), "keys": np.nonzero(edges)[1].tolist()})
    return {"heads": result}


def make_golden(model: Reference, rng: np.random.Generator) -> list:
    """The inputs of a case with their logits, rounded to 12 significant digits."""
    config = model.config
    kinds = config["attention"] if isinstance(config["attention"], list) else [config["attention"]]
    sampled = any(kind["kind"] != "dense" for kind in kinds)
    inputs = make_inputs(config, rng)
    entries = []
    for index, token_ids in enumerate(inputs):
        entry = {"token_ids": token_ids}
        sequences = [token_ids]
        if config["task"] == "pair-classification":
            entry["second"] = inputs[(index + 3) % len(inputs)]
            sequences.append(entry["second"])
        if sampled:
            density = (0.15, 0.4, 1.0, 0.3, 0.25, 0.1, 0.5, 1.0)[index % 8]
            layers = []
            for ids in sequences:
                valid = model.as_seen(ids) != model.config.get("pad_token_id", 0)
                for _ in range(config["num_hidden_layers"]):
                    layers.append(make_layer(valid, config["num_attention_heads"], density, rng))
            entry["graph"] = {"layers": layers}
        arguments = (entry["token_ids"], entry.get("second"), entry.get("graph"))
        entry["logits"] = _rounded(model.logits(*arguments))
        if sampled:
            expected = [layer.sum(axis=(1, 2)) for layer in model.probabilities_of_edges(*arguments)]
            entry["expected_edges"] = _rounded(np.array(expected))
        entries.append(entry)
    return entries


def _rounded(values: np.ndarray) -> list:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    if np.all(np.isnan(values)):
        return None
    return [float(f"{value:.12g}") for value in values]


def make_case(folder: str, case: str) -> None:
    """Writes one case; its random numbers depend on its name only."""
    rng = np.random.default_rng(list(case.encode()))
    config, block_matrix = make_config(case)
    directory = os.path.join(folder, case, "1")
    write_model(directory, config, make_tensors(config, block_matrix, rng))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in make_golden(Reference(directory), rng))
    with open(os.path.join(folder, case, "golden.json"), "w", encoding="utf-8") as file:
        file.write(f"[\n{lines}\n]\n")


def main(folder: str) -> None:
    for case in CASES:
        make_case(folder, case)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "testdata"))
