"""Checkpoints of the SBM-Transformer authors (`<task>_<attn>_<time>_output.model`) and their task configs.

A checkpoint holds tensors only; what it does not say comes from the config, a JSON object with the keys of the
authors' `lra_config`: alone, as the `model` of a whole task entry, or as the first of the two objects that their
training script prints. Keys that the tensors already tell may be missing; where both speak they must agree.
"""

import argparse
import re

from . import tokenizer
from .config_checks import check_config
from .errors import ConvertError, mismatch, quoted
from .files import read_json
from .model_format import tensor_shapes
from .torch_zip import TorchStateDict

NAME = "sbm-transformer"
HELP = "a checkpoint of the SBM-Transformer authors' code"

_WORD = "model.embeddings.word_embeddings.weight"
_POSITION = "model.embeddings.position_embeddings.weight"
_HEAD = "seq_classifer.mlpblock."  # spelled so in the checkpoints
_TIED_PREFIX = "model.transformer."

# Inside a layer: our name -> theirs.
_LAYER = {
    "attention_norm": "norm1",
    "attention.query": "mha.W_q",
    "attention.key": "mha.W_k",
    "attention.value": "mha.W_v",
    "attention.output": "mha.ff",
    "attention.membership.0": "mha.attn.proj.0",
    "attention.membership.1": "mha.attn.proj.2",
    "mlp_norm": "norm2",
    "mlp.up": "mlpblock.0",
    "mlp.down": "mlpblock.3",
}
_OUTSIDE = {
    "embeddings.word": "model.embeddings.word_embeddings",
    "embeddings.position": "model.embeddings.position_embeddings",
    "final_norm": "model.norm",
    "classifier.hidden": _HEAD + "0",
    "classifier.output": _HEAD + "2",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="X.model")
    parser.add_argument("--config", required=True, metavar="X.json", help="the keys of the authors' lra_config")
    parser.add_argument("--law", choices=("bernoulli", "poisson_set", "poisson_multi"), default="bernoulli")
    parser.add_argument("--exploration", type=float, default=0.01, metavar="DELTA", help="added to every probability")
    parser.add_argument("--description", metavar="TEXT", help="one line about the model")
    tokenizer.add_arguments(parser)


def convert(args: argparse.Namespace) -> tuple:
    """(config, tensors) in our format."""
    if not 0.0 <= args.exploration <= 1.0:
        raise mismatch("--exploration", args.exploration, "0 to 1")
    source = _Source(args.checkpoint, args.config)
    try:
        config = source.config(args.law, args.exploration)
        config["tokenizer"] = tokenizer.tokenizer_config(args, config["vocab_size"])
        if args.labels:
            config["id2label"] = tokenizer.labels_config(args.labels, config["num_labels"])
        if args.description:
            config["description"] = args.description
        check_config(config, args.config)
        return config, source.tensors(config)
    finally:
        source.close()


def their_name(name: str, tied: bool) -> str:
    """The authors' name of one of our tensors."""
    if name.startswith("layers."):
        layer, rest = name.removeprefix("layers.").split(".", 1)
        prefix = _TIED_PREFIX if tied else f"model.transformer_{layer}."
        if rest == "attention.clusters":
            return prefix + "mha.attn.clusters"
        module, kind = rest.rsplit(".", 1)
        return f"{prefix}{_LAYER[module]}.{kind}"
    module, kind = name.rsplit(".", 1)
    return f"{_OUTSIDE[module]}.{kind}"


class _Source:
    """A checkpoint beside its config: answers what the model is, and fails where the two disagree."""

    def __init__(self, checkpoint: str, config: str):
        self._checkpoint, self._config = checkpoint, config
        table = read_json(config)
        if isinstance(table, list) and table:
            table = table[0]
        if isinstance(table, dict) and isinstance(table.get("model"), dict):
            extra = table.get("extra_attn_config")
            table = dict(table["model"])
            if isinstance(extra, dict) and isinstance(extra.get("sbm"), dict):  # settings of each attention kind
                table = {**extra["sbm"], **table}
        if not isinstance(table, dict):
            raise ConvertError(f"{config}: not a JSON object")
        self._table = table
        self._state = TorchStateDict(checkpoint, ("model_state_dict",))

    def close(self) -> None:
        self._state.close()

    def config(self, law: str, exploration: float) -> dict:
        """Our config.json, still without a tokenizer."""
        tied, layers = self._layers()
        prefix = _TIED_PREFIX if tied else "model.transformer_0."
        vocab, width = self._shape(_WORD, 2)
        positions = self._shape(_POSITION, 2)[0]
        hidden = self._shape(prefix + "mlpblock.0.weight", 2)[0]
        classes = self._shape(_HEAD + "2.weight", 2)[0]
        features = self._shape(_HEAD + "0.weight", 2)[1]
        if features not in (width, 4 * width):
            raise mismatch(
                f"{self._checkpoint}: tensor {_HEAD}0.weight: inputs",
                features,
                f"{width} (one sequence) or {4 * width} (two)",
            )
        self._agree("vocab_size", vocab)
        self._agree("transformer_dim", width)
        self._agree("embedding_dim", width)
        self._agree("transformer_hidden_dim", hidden)
        self._agree("num_classes", classes)
        self._agree_length(positions)
        heads, head_dim, attention = self._attention(prefix, law, exploration)
        config = {
            "task": "pair-classification" if features == 4 * width else "sequence-classification",
            "vocab_size": vocab,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "tied_layers": tied,
            "num_attention_heads": heads,
            "head_dim": head_dim,
            "intermediate_size": hidden,
            "max_position_embeddings": positions,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "norm_position": "pre",
            "position_embedding": "learned",
            "pad_token_id": 0,
        }
        if self._choice("pooling_mode", ("MEAN", "CLS")) == "MEAN":
            config["pooling"] = {"kind": "mean", "divisor": "max_length"}
        else:
            config["pooling"] = {"kind": "cls"}
            config["cls_token_id"] = vocab - 1
        config.update(num_labels=classes, classifier_hidden_size=hidden, attention=attention)
        return config

    def tensors(self, config: dict) -> dict:
        """Our name -> float32 array. Every tensor of the checkpoint is used once, with the shape of the config."""
        result, left = {}, set(self._state.names())
        for name, shape in tensor_shapes(config).items():
            theirs = their_name(name, config["tied_layers"])
            if self._shape(theirs, len(shape)) != shape:
                where = f"{self._checkpoint}: tensor {quoted(theirs)}: shape"
                raise mismatch(where, list(self._shape(theirs, len(shape))), list(shape))
            result[name] = self._state.load(theirs)
            left.discard(theirs)
        if left:
            raise ConvertError(f"{self._checkpoint}: tensor {quoted(min(left))} belongs to no part of this model")
        return result

    def _layers(self) -> tuple:
        """(tied, number of applications of a layer)."""
        names = self._state.names()
        tied = any(name.startswith(_TIED_PREFIX) for name in names)
        if "tied_weights" in self._table and self._table["tied_weights"] is not tied:
            expected = f"{tied} ({'tied' if tied else 'untied'} layers in {self._checkpoint})"
            raise mismatch(f"{self._config}: tied_weights", quoted(self._table["tied_weights"]), expected)
        if tied:
            if "num_layers" not in self._table:
                raise mismatch(f"{self._config}: num_layers", "nothing", "a number: tied layers do not tell it")
            return True, self._count("num_layers")
        matches = [re.match(r"model\.transformer_(\d{1,9})\.", name) for name in names]
        layers = len({match.group(1) for match in matches if match})
        if layers == 0:
            raise ConvertError(f"{self._checkpoint}: no tensor model.transformer_0.* and none model.transformer.*")
        self._agree("num_layers", layers)
        return False, layers

    def _attention(self, prefix: str, law: str, exploration: float) -> tuple:
        """(heads, width of a head, our attention object)."""
        clusters = prefix + "mha.attn.clusters"
        inner = self._shape(prefix + "mha.W_q.weight", 2)[0]
        sampled = clusters in self._state.names()
        if "attn_type" in self._table:
            kind = self._choice("attn_type", ("softmax", "sbm"))
            if (kind == "sbm") != sampled:
                reason = f"{self._checkpoint} has {'a' if sampled else 'no'} tensor {clusters}"
                expected = f"{'sbm' if sampled else 'softmax'} ({reason})"
                raise mismatch(f"{self._config}: attn_type", quoted(kind), expected)
        if sampled:
            heads, k, head_dim = self._shape(clusters, 3)
            self._agree("num_head", heads)
            self._agree("head_dim", head_dim)
            self._agree("num_clusters", k)
            return heads, head_dim, {"kind": "sbm", "num_clusters": k, "law": law, "exploration": exploration}
        if "num_head" not in self._table and "head_dim" not in self._table:
            raise mismatch(f"{self._config}: num_head", "nothing", "a number: softmax attention does not tell it")
        given = "num_head" if "num_head" in self._table else "head_dim"
        first = self._count(given)
        if inner % first:
            expected = f"a divisor of {inner}, the rows of {prefix}mha.W_q.weight"
            raise mismatch(f"{self._config}: {given}", first, expected)
        heads, head_dim = (first, inner // first) if given == "num_head" else (inner // first, first)
        self._agree("head_dim", head_dim)
        return heads, head_dim, {"kind": "dense"}

    def _shape(self, name: str, dimensions: int) -> tuple:
        if name not in self._state.names():
            raise ConvertError(f"{self._checkpoint}: tensor {quoted(name)} is missing")
        shape = self._state.shape(name)
        if len(shape) != dimensions or 0 in shape:
            expected = f"{dimensions} positive numbers"
            raise mismatch(f"{self._checkpoint}: tensor {quoted(name)}: shape", list(shape), expected)
        return shape

    def _count(self, key: str) -> int:
        value = self._table[key]
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise mismatch(f"{self._config}: {key}", quoted(value), "a positive integer")
        return value

    def _choice(self, key: str, choices: tuple) -> str:
        value = self._table.get(key)
        if value not in choices:
            found = quoted(value) if key in self._table else "nothing"
            raise mismatch(f"{self._config}: {key}", found, " or ".join(choices))
        return value

    def _agree(self, key: str, expected: int) -> None:
        """A key that is given must be what the tensors say."""
        if key in self._table and self._count(key) != expected:
            reason = f"the tensors of {self._checkpoint}"
            raise mismatch(f"{self._config}: {key}", self._count(key), f"{expected} ({reason})")

    def _agree_length(self, positions: int) -> None:
        """max_seq_len may be the length before the authors' rounding: up to a power of two, 4096 to 3072 for text."""
        if "max_seq_len" not in self._table:
            return
        length = self._count("max_seq_len")
        rounded = 1 << (length - 1).bit_length()
        if positions not in (length, rounded) and (rounded, positions) != (4096, 3072):
            expected = f"{positions} (the rows of {_POSITION}), or a length that is padded to it"
            raise mismatch(f"{self._config}: max_seq_len", length, expected)
