"""The target format, docs/model-format.md, as the converters need it: which fields and tensors a model has.

The server checks everything again at load; the point of checking here is to fail while the source is at hand.
"""

import json
import os
import re

from .errors import ConvertError, mismatch, quoted
from .files import ReplacedFile
from .safetensors_io import write_safetensors

_REQUIRED_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "num_labels",
)
_CHOICES = {
    "task": ("sequence-classification", "pair-classification", "token-classification"),
    "hidden_act": ("gelu", "relu"),
    "norm_position": ("pre", "post"),
    "position_embedding": ("learned", "sinusoidal", "none"),
}
_OTHER_FIELDS = (
    "description",
    "tied_layers",
    "head_dim",
    "layer_norm_eps",
    "causal",
    "pad_token_id",
    "cls_token_id",
    "pooling",
    "id2label",
    "classifier_hidden_size",
    "tokenizer",
    "attention",
    "budget_shares",
)
_MAX_LAYERS_AND_HEADS = 4096  # 12 bits each in the random-number counter
_LAWS = ("bernoulli", "poisson_set", "poisson_multi")


def check_config(config: object, where: str) -> None:
    """Raises ConvertError for an unknown field, a missing one, or one of the wrong type or range."""
    if not isinstance(config, dict):
        raise ConvertError(f"{where}: not a JSON object")
    for name in config:
        if name not in _REQUIRED_COUNTS and name not in _CHOICES and name not in _OTHER_FIELDS:
            raise ConvertError(f"{where}: unknown field {quoted(name)}")
    for name in _REQUIRED_COUNTS + ("head_dim",):
        if name not in config and name == "head_dim":
            continue
        _require_count(config, name, where)
    if "task" not in config:
        raise mismatch(f"{where}: task", "nothing", "one of " + ", ".join(_CHOICES["task"]))
    for name, choices in _CHOICES.items():
        if name in config and config[name] not in choices:
            raise mismatch(f"{where}: {name}", quoted(config[name]), "one of " + ", ".join(choices))
    for name in ("num_hidden_layers", "num_attention_heads"):
        if config[name] > _MAX_LAYERS_AND_HEADS:
            raise mismatch(f"{where}: {name}", config[name], f"at most {_MAX_LAYERS_AND_HEADS}")
    if type(config.get("tied_layers", False)) is not bool:
        raise mismatch(f"{where}: tied_layers", quoted(config["tied_layers"]), "true or false")
    if config.get("classifier_hidden_size", 0) != 0:
        _require_count(config, "classifier_hidden_size", where)
    if "head_dim" not in config and config["hidden_size"] % config["num_attention_heads"]:
        raise ConvertError(
            f"{where}: head_dim is not given and hidden_size {config['hidden_size']} is not a multiple of "
            f"num_attention_heads {config['num_attention_heads']}"
        )
    _check_pooling(config, where)
    attention = config.get("attention")
    if isinstance(attention, list) and len(attention) != config["num_hidden_layers"]:
        expected = f"num_hidden_layers {config['num_hidden_layers']}"
        raise mismatch(f"{where}: attention: entries", len(attention), expected)
    for kind in attention if isinstance(attention, list) else [attention]:
        _check_attention(kind, where)


def _require_count(table: dict, name: str, where: str) -> None:
    value = table.get(name, "nothing")
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise mismatch(f"{where}: {name}", quoted(value), "an integer from 1 to 2147483647")


def _check_pooling(config: dict, where: str) -> None:
    pooling = config.get("pooling")
    if config["task"] == "token-classification":
        if pooling is not None:
            raise ConvertError(f"{where}: pooling is given, but token-classification has none")
        return
    if not isinstance(pooling, dict) or pooling.get("kind") not in ("mean", "cls"):
        raise mismatch(f"{where}: pooling", quoted(pooling), "an object of kind mean or cls")
    if pooling["kind"] == "mean" and pooling.get("divisor") not in ("valid", "max_length"):
        raise mismatch(f"{where}: pooling.divisor", quoted(pooling.get("divisor")), "valid or max_length")
    if pooling["kind"] == "cls" and type(config.get("cls_token_id")) is not int:
        raise mismatch(f"{where}: cls_token_id", quoted(config.get("cls_token_id")), "an integer, as pooling is cls")


def _check_attention(attention: object, where: str) -> None:
    kind = attention.get("kind") if isinstance(attention, dict) else None
    if kind not in ("dense", "sbm"):
        raise mismatch(f"{where}: attention.kind", quoted(kind), "dense or sbm")
    if kind == "sbm":
        _require_count(attention, "num_clusters", f"{where}: attention")
        if attention.get("law") not in _LAWS:
            raise mismatch(f"{where}: attention.law", quoted(attention.get("law")), "one of " + ", ".join(_LAWS))


def tensor_shapes(config: dict) -> dict:
    """name -> shape of every tensor that a model with this (checked) config has, in the order of the document."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", width // heads)
    inner, hidden = heads * head_dim, config["intermediate_size"]
    shapes = {"embeddings.word.weight": (config["vocab_size"], width)}
    if config.get("position_embedding", "learned") == "learned":
        shapes["embeddings.position.weight"] = (config["max_position_embeddings"], width)

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[name + ".weight"] = (outputs, inputs)
        shapes[name + ".bias"] = (outputs,)

    def norm(name: str) -> None:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (width,)

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
        norm(prefix + "mlp_norm")
        linear(prefix + "mlp.up", hidden, width)
        linear(prefix + "mlp.down", width, hidden)
    if config.get("norm_position", "pre") == "pre":
        norm("final_norm")
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
