"""Recognises the files of a Hugging Face model, which no source format takes as they are, and says what to do."""

import argparse
import json
import os

from .config_checks import refuse_approximate_gelu
from .errors import ConvertError, quoted
from .files import open_regular, read_bytes

_ACTIVATION_FIELDS = ("hidden_act", "activation_function", "activation")
ADVICE = "`convert.py state-dict` reads its tensors, with a mapping file (docs/convert.md#hugging-face)"


def refuse(args: argparse.Namespace) -> None:
    """Raises ConvertError where a file given to convert.py is a Hugging Face one in the wrong place, or where its model
    has an activation that no mapping can express."""
    checkpoint = args.checkpoint
    beside = os.path.join(os.path.dirname(checkpoint), "config.json")
    if os.path.isdir(checkpoint):
        kind = _kind(os.path.join(checkpoint, "config.json"))
        if kind:
            raise ConvertError(f"{checkpoint}: the folder of a Hugging Face model ({kind}); {ADVICE}")
    elif args.source == "state-dict":
        config = _config(beside)
        for field in _ACTIVATION_FIELDS:
            refuse_approximate_gelu(config.get(field), f"{beside}: {field}")
    elif _is_safetensors(checkpoint):
        kind = _kind(beside)
        whose = f" of a Hugging Face model ({kind})" if kind else ""
        raise ConvertError(f"{checkpoint}: a safetensors file{whose}, which {args.source} does not read; {ADVICE}")
    for option in ("config", "mapping"):
        path = getattr(args, option, None)
        kind = _kind(path) if path else None
        if kind:
            what = f"the config of a Hugging Face model ({kind}), not what --{option} wants"
            raise ConvertError(f"{path}: {what}; {ADVICE}")


def _config(path: str) -> dict:
    """The config.json of a Hugging Face model, empty for anything else."""
    try:
        config = json.loads(read_bytes(path))
    except (ConvertError, ValueError, RecursionError):
        return {}
    named = isinstance(config, dict) and ("model_type" in config or "architectures" in config)
    return config if named and "task" not in config else {}


def _kind(path: str) -> str | None:
    """'model_type "bert"' for the config.json of a Hugging Face model, None for anything else."""
    config = _config(path)
    for field in ("model_type", "architectures"):
        if field in config:
            return f"{field} {quoted(config[field], 64)}"
    return None


def _is_safetensors(path: str) -> bool:
    """8 bytes of header length, then a JSON object."""
    try:
        with open_regular(path) as file:
            start = file.read(9)
    except ConvertError:
        return False
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < os.path.getsize(path)
