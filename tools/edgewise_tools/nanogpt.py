"""Checkpoints of nanoGPT (`ckpt.pt`): causal language models with the layers of GPT-2.

A checkpoint is a dict of `model`, the state dict, `model_args`, the settings that shape the model, and what training
needs to go on (optimizer, iter_num, best_val_loss, config), of which no storage is read. The names in the state dict
may carry the prefix of a compiled model; the causal masks that older versions keep as buffers are left out.
"""

from __future__ import annotations

import argparse
import re

from . import char_vocabulary
from .arrays import np
from .config_checks import check_config
from .errors import ConvertError, mismatch, quoted
from .files import read_json
from .model_format import tensor_shapes
from .torch_zip import TorchStateDict

NAME = "nanogpt"
HELP = "a ckpt.pt of nanoGPT"

_COMPILED = "_orig_mod."
_BUFFER = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")  # attn.c_attn.bias is a parameter
_COUNTS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_WORD, _HEAD = "transformer.wte.weight", "lm_head.weight"

# Inside a layer: our name -> theirs.
_LAYER = {
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_OUTSIDE = {
    "embeddings.word": "transformer.wte",
    "embeddings.position": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="ckpt.pt")
    parser.add_argument("--attention", metavar="F.json", help="the field `attention` of config.json; default dense")
    parser.add_argument("--description", metavar="TEXT", help="one line about the model")
    char_vocabulary.add_arguments(parser)


def convert(args: argparse.Namespace) -> tuple:
    """(config, tensors) in our format."""
    source = _Source(args.checkpoint)
    try:
        config = source.config()
        if args.attention:
            config["attention"] = read_json(args.attention)
        check_config(config, args.attention or args.checkpoint)
        _refuse_learned_blocks(config["attention"], args.attention)
        config["tokenizer"] = char_vocabulary.tokenizer_config(args, config["vocab_size"])
        if args.description:
            config["description"] = args.description
        tensors = source.tensors(config)
        if not source.biases:
            print(f"{args.checkpoint}: without biases; they are zeros in the model")
        return config, tensors
    finally:
        source.close()


def _refuse_learned_blocks(attention: object, path: str) -> None:
    for entry in attention if isinstance(attention, list) else [attention]:
        if entry.get("pattern") == "learned":
            raise ConvertError(f"{path}: attention.pattern: learned needs block scores, which nanoGPT does not train")


def their_name(name: str) -> str:
    """nanoGPT's name of one of our tensors."""
    module, kind = name.rsplit(".", 1)
    if module.startswith("layers."):
        layer, rest = module.removeprefix("layers.").split(".", 1)
        return f"transformer.h.{layer}.{_LAYER[rest]}.{kind}"
    return f"{_OUTSIDE[module]}.{kind}"


class _Source:
    """An open checkpoint. `biases`: whether the model was trained with them."""

    def __init__(self, path: str):
        self._path = path
        self._state = TorchStateDict(path, ("model",))
        try:
            self._args = self._model_args()
            self._stored = self._stored_names()
            self.biases = self._has_biases()
        except BaseException:
            self._state.close()
            raise

    def close(self) -> None:
        self._state.close()

    def config(self) -> dict:
        """Our config.json, still without a tokenizer."""
        args = self._args
        steps = self._state.root.get("iter_num")
        trained = f", {steps} iterations" if type(steps) is int and 0 <= steps < 1 << 63 else ""
        hidden = self._shape("transformer.h.0.mlp.c_fc.weight")
        if len(hidden) != 2:
            raise mismatch(self._where("transformer.h.0.mlp.c_fc.weight"), list(hidden), "2 dimensions")
        return {
            "task": "causal-lm",
            "description": f"nanoGPT{trained}",
            "vocab_size": args["vocab_size"],
            "hidden_size": args["n_embd"],
            "num_hidden_layers": args["n_layer"],
            "num_attention_heads": args["n_head"],
            "head_dim": args["n_embd"] // args["n_head"],
            "intermediate_size": hidden[0],
            "max_position_embeddings": args["block_size"],
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "norm_position": "pre",
            "position_embedding": "learned",
            "causal": True,
            "tie_word_embeddings": self._tied(),
            "pad_token_id": -1,
            "attention": {"kind": "dense"},
        }

    def tensors(self, config: dict) -> dict:
        """Our name -> float32 array. Every tensor of the checkpoint is used, with the shape of the config."""
        shapes = tensor_shapes(config)
        wanted = {}  # their name -> our names, in the order of the rows
        for name in shapes:
            if name.endswith(".bias") and not self.biases:
                continue
            wanted.setdefault(their_name(name), []).append(name)
        for theirs, ours in wanted.items():
            expected = (len(ours) * shapes[ours[0]][0], *shapes[ours[0]][1:])
            if self._shape(theirs) != expected:
                raise mismatch(self._where(theirs), list(self._shape(theirs)), list(expected))
        left = set(self._stored) - set(wanted) - ({_HEAD} if config["tie_word_embeddings"] else set())
        if left:
            raise ConvertError(f"{self._path}: tensor {quoted(min(left))} belongs to no part of this model")
        parts = {}
        for theirs, ours in wanted.items():
            parts.update(zip(ours, np.split(self._load(theirs), len(ours))))
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name not in parts}
        return {name: parts[name] if name in parts else zeros[name] for name in shapes}

    def _model_args(self) -> dict:
        """n_layer, n_head, n_embd, block_size, vocab_size, and bias where it is given."""
        root = self._state.root
        args = root.get("model_args")
        if not isinstance(args, dict) or not isinstance(root.get("model"), dict):
            raise ConvertError(f"{self._path}: not a checkpoint of nanoGPT: no dicts `model` and `model_args`")
        where = f"{self._path}: model_args"
        for name in args:
            if name not in _COUNTS and name not in ("bias", "dropout"):
                raise ConvertError(f"{where}: {quoted(name)} is no setting of nanoGPT's model")
        for name in _COUNTS:
            value = args.get(name, "nothing")
            if type(value) is not int or not 1 <= value < 1 << 31:
                raise mismatch(f"{where}: {name}", quoted(value), "a positive integer")
        if type(args.get("bias", True)) is not bool:
            raise mismatch(f"{where}: bias", quoted(args["bias"]), "true or false")
        if args["n_embd"] % args["n_head"]:
            raise mismatch(f"{where}: n_embd", args["n_embd"], f"a multiple of n_head {args['n_head']}")
        return args

    def _stored_names(self) -> dict:
        """Their name without a prefix -> as it is stored; without buffers."""
        stored = {}
        for name in self._state.names():
            plain = name.removeprefix(_COMPILED)
            if plain in stored:
                raise ConvertError(f"{self._path}: tensor {quoted(plain)} is there with and without {_COMPILED}")
            if not _BUFFER.fullmatch(plain):
                stored[plain] = name
        return stored

    def _has_biases(self) -> bool:
        """As model_args say; where they do not, as the last norm has it."""
        return self._args.get("bias", "transformer.ln_f.bias" in self._stored)

    def _tied(self) -> bool:
        """Whether the output layer is the word embedding: absent, the same storage, or the same numbers."""
        if _HEAD not in self._stored:
            return True
        if self._shape(_HEAD) != self._shape(_WORD):
            raise mismatch(self._where(_HEAD), list(self._shape(_HEAD)), list(self._shape(_WORD)))
        if self._state.same_values(self._stored[_WORD], self._stored[_HEAD]):
            return True
        return np.array_equal(self._load(_WORD), self._load(_HEAD))

    def _where(self, name: str) -> str:
        return f"{self._path}: tensor {quoted(self._stored[name])}: shape"

    def _shape(self, name: str) -> tuple:
        if name not in self._stored:
            raise ConvertError(f"{self._path}: tensor {quoted(name)} is missing")
        return self._state.shape(self._stored[name])

    def _load(self, name: str) -> np.ndarray:
        return self._state.load(self._stored[name])
