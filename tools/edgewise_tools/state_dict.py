"""Any state dict, from a torch zip or a safetensors file, by a mapping file.

The mapping is a JSON object: `config`, our config.json as it shall be, and `tensors`, our name -> where the values
come from: the name of their tensor, or an object with

    name       their tensor
    transpose  true: swap its two dimensions             (first)
    rows       [a, b]: keep rows a to b - 1               (second)
    reshape    [...]: the same values, another shape      (last)

or {"fill": x} for a tensor that they do not have, for instance the biases of a model without biases. `{l}` in a
name of ours stands for every layer, and in theirs for its number.
"""

from __future__ import annotations

import argparse

from .arrays import np
from .config_checks import check_config
from .errors import ConvertError, mismatch, quoted
from .files import open_regular, read_json
from .model_format import optional_tensor_shapes, tensor_shapes
from .safetensors_io import SafetensorsStateDict
from .torch_zip import TorchStateDict

NAME = "state-dict"
HELP = "any torch (zip) or safetensors state dict, through a mapping file"

_MAX_NAMES_TEXT = 1000  # characters of a message that lists tensors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, metavar="F")
    parser.add_argument("--mapping", required=True, metavar="M.json", help="our config, and our tensors from theirs")
    parser.add_argument(
        "--allow_unused", action="store_true", help="convert although the mapping does not use every tensor"
    )


def convert(args: argparse.Namespace) -> tuple:
    """(config, tensors) in our format."""
    mapping = read_json(args.mapping)
    if not isinstance(mapping, dict) or set(mapping) != {"config", "tensors"}:
        raise ConvertError(f"{args.mapping}: not an object of config and tensors")
    config = mapping["config"]
    check_config(config, f"{args.mapping}: config")
    required = tensor_shapes(config)
    shapes = {**required, **optional_tensor_shapes(config)}
    sources = _expand(mapping["tensors"], config, args.mapping)
    for name in required:
        if name not in sources:
            raise ConvertError(f"{args.mapping}: tensor {quoted(name)} of shape {list(required[name])} is missing")
    for name in sources:
        if name not in shapes:
            raise ConvertError(f"{args.mapping}: tensor {quoted(name)} is no part of a model with this config")
    state = open_state_dict(args.checkpoint)
    try:
        tensors = {
            name: _build(state, sources[name], shape, f"{args.mapping}: tensor {quoted(name)}")
            for name, shape in shapes.items()
            if name in sources
        }
        _check_unused(state, sources, args.allow_unused)
        return config, tensors
    finally:
        state.close()


def _check_unused(state: object, sources: dict, allowed: bool) -> None:
    """A tensor that the mapping leaves out is a part of their model that ours would not compute."""
    unused = sorted(set(state.names()) - {entry.get("name") for entry in sources.values()})
    if not unused:
        return
    message = f"{state.path}: tensors that the mapping does not use ({len(unused)}): {quoted(unused, _MAX_NAMES_TEXT)}"
    if not allowed:
        raise ConvertError(
            f"{message}; a model that lacks a part answers wrongly: map them, or add --allow_unused if none of them "
            "is a part (causal masks, a second name of a tensor)"
        )
    print(message)


def open_state_dict(path: str):
    """A TorchStateDict or a SafetensorsStateDict, by the first bytes of the file."""
    with open_regular(path) as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    return TorchStateDict(path) if is_zip else SafetensorsStateDict(path)


def _expand(tensors: object, config: dict, where: str) -> dict:
    """our name -> entry, {l} replaced by the layers, every entry an object."""
    if not isinstance(tensors, dict):
        raise ConvertError(f"{where}: tensors is not an object")
    layers = 1 if config.get("tied_layers") else config["num_hidden_layers"]
    result = {}
    for ours, entry in tensors.items():
        entry = {"name": entry} if isinstance(entry, str) else entry
        _check_entry(entry, f"{where}: tensor {quoted(ours)}")
        for layer in range(layers if "{l}" in ours else 1):
            name, source = ours, entry
            if "{l}" in ours:
                name = ours.replace("{l}", str(layer))
                if "name" in entry:
                    source = {**entry, "name": entry["name"].replace("{l}", str(layer))}
            if name in result:
                raise ConvertError(f"{where}: tensor {quoted(name)} is mapped twice")
            result[name] = source
    return result


def _check_entry(entry: object, where: str) -> None:
    if not isinstance(entry, dict) or ("name" in entry) == ("fill" in entry):
        raise ConvertError(f"{where}: not a name, an object with a name, or an object with fill")
    allowed = {"name", "transpose", "rows", "reshape"} if "name" in entry else {"fill"}
    if set(entry) - allowed:
        raise mismatch(f"{where}: key", quoted(min(set(entry) - allowed)), "one of " + ", ".join(sorted(allowed)))
    if "name" in entry and not isinstance(entry["name"], str):
        raise mismatch(f"{where}: name", quoted(entry["name"]), "text")
    if "fill" in entry and (type(entry["fill"]) not in (int, float) or not abs(entry["fill"]) < 3e38):
        raise mismatch(f"{where}: fill", quoted(entry["fill"]), "a finite number")
    if type(entry.get("transpose", False)) is not bool:
        raise mismatch(f"{where}: transpose", quoted(entry["transpose"]), "true or false")
    for key in ("rows", "reshape"):
        if key in entry:
            value = entry[key]
            numbers = isinstance(value, list) and len(value) <= 8
            if not numbers or not all(type(v) is int and 0 <= v < 1 << 31 for v in value):
                raise mismatch(f"{where}: {key}", quoted(value), "a list of up to 8 non-negative integers")


def _build(state: object, entry: dict, shape: tuple, where: str) -> np.ndarray:
    """float32 array of `shape`, by one checked entry."""
    if "fill" in entry:
        try:
            return np.full(shape, entry["fill"], dtype=np.float32)
        except (ValueError, MemoryError):
            raise ConvertError(f"{where}: fill: no memory for the shape {list(shape)}") from None
    theirs = entry["name"]
    if theirs not in state.names():
        raise ConvertError(f"{state.path}: tensor {quoted(theirs)} is missing (wanted by {where})")
    values = state.load(theirs)
    if entry.get("transpose"):
        if values.ndim != 2:
            raise mismatch(f"{where}: transpose of {quoted(theirs)}: dimensions", values.ndim, 2)
        values = values.T
    if "rows" in entry:
        rows = entry["rows"]
        if len(rows) != 2 or values.ndim < 1 or not rows[0] < rows[1] <= len(values):
            limit = len(values) if values.ndim else 0
            raise mismatch(f"{where}: rows of {quoted(theirs)}", rows, f"[a, b] with a < b <= {limit}")
        values = values[rows[0] : rows[1]]
    if "reshape" in entry:
        if int(np.prod(entry["reshape"], dtype=object)) != values.size:
            raise mismatch(f"{where}: reshape of {quoted(theirs)}: values", values.size, entry["reshape"])
        values = values.reshape(entry["reshape"])
    if values.shape != shape:
        raise mismatch(f"{where}: shape of {quoted(theirs)}", list(values.shape), list(shape))
    return np.ascontiguousarray(values, dtype=np.float32)
