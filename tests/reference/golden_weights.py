"""Random weights of the test models, and the files of a model."""

import json
import os
import struct

import numpy as np


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

    causal, longest = config["task"] == "causal-lm", config["max_position_embeddings"]
    position = config.get("position_embedding", "learned")
    if "feature_size" in config:
        linear("embeddings.features", width, config["feature_size"])
    else:
        normal("embeddings.word.weight", (config["vocab_size"], width), 0.6 if causal else 1.0)
    if position == "learned":
        normal("embeddings.position.weight", (longest, width), 0.7)
    if position == "relative":
        normal("embeddings.relative.weight", (heads, 2 * longest - 1), 0.8)
    if config.get("pairwise_bias", {}).get("kind") == "buckets":
        normal("embeddings.pairwise.weight", (heads, config["pairwise_bias"]["num_buckets"]), 1.0)
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
        if attention["kind"] == "block" and attention["pattern"] == "learned":
            blocks = -(-longest // attention["block_size"])
            normal(prefix + "attention.block_scores", (blocks, blocks), 1.5)
        norm(prefix + "mlp_norm")
        linear(prefix + "mlp.up", hidden, width, 1.3)
        linear(prefix + "mlp.down", width, hidden, 1.3)
    if config.get("norm_position", "pre") == "pre":
        norm("final_norm")
    if causal:
        if not config.get("tie_word_embeddings", True):
            normal("lm_head.weight", (config["vocab_size"], width), 0.6)
        return tensors
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
