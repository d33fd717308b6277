"""The target format, docs/model-format.md, as the converters need it: which tensors a model has, and its files.

The server checks everything again at load; the point of checking here is to fail while the source is at hand.
"""

import json
import os
import re

from .errors import ConvertError, mismatch, quoted
from .files import ReplacedFile
from .safetensors_io import write_safetensors


def tensor_shapes(config: dict) -> dict:
    """name -> shape of every tensor that a model with this (checked) config has, in the order of the document."""
    width, heads, length = config["hidden_size"], config["num_attention_heads"], config["max_position_embeddings"]
    head_dim = config.get("head_dim", width // heads)
    inner, hidden = heads * head_dim, config["intermediate_size"]
    language = config["task"] == "causal-lm"
    shapes = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[name + ".weight"] = (outputs, inputs)
        shapes[name + ".bias"] = (outputs,)

    def norm(name: str) -> None:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (width,)

    if "feature_size" in config:
        linear("embeddings.features", width, config["feature_size"])
    else:
        shapes["embeddings.word.weight"] = (config["vocab_size"], width)
    position = config.get("position_embedding", "learned")
    if position == "learned":
        shapes["embeddings.position.weight"] = (length, width)
    elif position == "relative":
        shapes["embeddings.relative.weight"] = (heads, 2 * length - 1)
    if config.get("pairwise_bias", {}).get("kind") == "buckets":
        shapes["embeddings.pairwise.weight"] = (heads, config["pairwise_bias"]["num_buckets"])
    for layer in range(1 if config.get("tied_layers") else config["num_hidden_layers"]):
        prefix = f"layers.{layer}."
        attention = config["attention"]
        attention = attention[layer] if isinstance(attention, list) else attention
        norm(prefix + "attention_norm")
        for part in ("query", "key", "value"):
            linear(prefix + "attention." + part, inner, width)
        linear(prefix + "attention.output", width, inner)
        if attention["kind"] == "sbm":
            shapes[prefix + "attention.clusters"] = (heads, attention["num_clusters"], head_dim)
            linear(prefix + "attention.membership.0", head_dim, head_dim)
            linear(prefix + "attention.membership.1", head_dim, head_dim)
        if attention.get("pattern") == "learned":
            blocks = -(-length // attention["block_size"])
            shapes[prefix + "attention.block_scores"] = (blocks, blocks)
        norm(prefix + "mlp_norm")
        linear(prefix + "mlp.up", hidden, width)
        linear(prefix + "mlp.down", width, hidden)
    if config.get("norm_position", "pre") == "pre":
        norm("final_norm")
    if language:
        if not config.get("tie_word_embeddings", True):
            shapes["lm_head.weight"] = (config["vocab_size"], width)
        return shapes
    features = width * (4 if config["task"] == "pair-classification" else 1)
    if config.get("classifier_hidden_size"):
        linear("classifier.hidden", config["classifier_hidden_size"], features)
        features = config["classifier_hidden_size"]
    linear("classifier.output", config["num_labels"], features)
    return shapes


def optional_tensor_shapes(config: dict) -> dict:
    """name -> shape of the tensors that a model may have: the block matrices of its sbm layers."""
    shapes = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith(".attention.clusters"):
            shapes[name[: -len("clusters")] + "block_matrix"] = (shape[0], shape[1], shape[1])
    return shapes


def check_output(directory: str, overwrite: bool) -> None:
    """The output must be .../<name>/<version> as a repository needs it, and hold no model unless `overwrite`."""
    path = os.path.abspath(directory)
    name, version = os.path.basename(os.path.dirname(path)), os.path.basename(path)
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", name) or not re.fullmatch(r"[1-9][0-9]{0,17}", version):
        raise mismatch(
            "--output", quoted(directory), "DIR/name/version: name of a-z 0-9 _ . -, version a positive number"
        )
    if not overwrite and os.path.exists(os.path.join(path, "config.json")):
        raise ConvertError(f"--output: {directory} holds a model already; choose the next version, or add --overwrite")


def write_model(directory: str, config: dict, tensors: dict) -> None:
    """Writes model.safetensors, then config.json: a version with a config is a complete one."""
    try:
        text = (json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    except ValueError as error:
        raise ConvertError(f"config: cannot be written as JSON: {quoted(str(error))}") from None
    os.makedirs(directory, exist_ok=True)
    write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
    with ReplacedFile(os.path.join(directory, "config.json")) as file:
        file.write(text)
