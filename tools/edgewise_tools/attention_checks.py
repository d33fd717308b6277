"""The field `attention` of config.json, docs/model-format.md: what each kind has."""

from .errors import ConvertError, mismatch, quoted

_FIELDS = {
    "dense": (),
    "sbm": ("num_clusters", "law", "exploration", "self_loops", "local_window"),
    "ssa": ("bias", "windows", "keep", "sigma", "grid", "last_layers"),
    "block": ("block_size", "pattern", "width", "stride", "blocks", "threshold"),
}
_LAWS = ("bernoulli", "poisson_set", "poisson_multi")
# pattern -> the fields that belong to it; `width` has a default.
_PATTERNS = {
    "diagonal": (),
    "local": ("width",),
    "strided": ("stride",),
    "first_and_diagonal": (),
    "list": ("blocks",),
    "learned": ("threshold",),
}
_MAX_COUNT = 1 << 20  # as many windows, sources or blocks as a model may have positions
_MAX_SIGMA = 1e6


def check_attention(config: dict, where: str) -> None:
    """Raises ConvertError where `attention` is no object of a known kind, or no list of one per layer."""
    attention = config.get("attention")
    if isinstance(attention, list) and len(attention) != config["num_hidden_layers"]:
        expected = f"num_hidden_layers {config['num_hidden_layers']}"
        raise mismatch(f"{where}: attention: entries", len(attention), expected)
    for index, entry in enumerate(attention if isinstance(attention, list) else [attention]):
        place = f"{where}: attention[{index}]" if isinstance(attention, list) else f"{where}: attention"
        _check_entry(entry, config, isinstance(attention, list), place)
        if config.get("tied_layers") and isinstance(attention, list) and entry != attention[0]:
            raise ConvertError(f"{place} differs from attention[0]: tied layers share theirs")


def _check_entry(entry: object, config: dict, listed: bool, where: str) -> None:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise mismatch(f"{where}.kind", quoted(kind), "dense, sbm, ssa or block")
    for name in entry:
        if name != "kind" and name not in _FIELDS[kind]:
            allowed = ", ".join(_FIELDS[kind]) or "none"
            raise ConvertError(f"{where}: unknown field {quoted(name)} of kind {kind}; its fields: {allowed}")
    if kind == "sbm":
        _check_sbm(entry, config, where)
    elif kind == "ssa":
        _check_ssa(entry, config, listed, where)
    elif kind == "block":
        _check_block(entry, where)


def _integer(table: dict, name: str, where: str, least: int = 1, most: int = _MAX_COUNT) -> int:
    value = table.get(name, "nothing")
    if type(value) is not int or not least <= value <= most:
        raise mismatch(f"{where}.{name}", quoted(value), f"an integer from {least} to {most}")
    return value


def _number(value: object, name: str, where: str, least: float, most: float) -> None:
    if type(value) not in (int, float) or not least <= value <= most:
        raise mismatch(f"{where}.{name}", quoted(value), f"a number from {least:g} to {most:g}")


def _check_sbm(entry: dict, config: dict, where: str) -> None:
    if config["task"] == "causal-lm":
        raise mismatch(f"{where}.kind", "sbm", "dense, ssa or block, as task is causal-lm")
    _integer(entry, "num_clusters", where)
    if entry.get("law") not in _LAWS:
        raise mismatch(f"{where}.law", quoted(entry.get("law")), "one of " + ", ".join(_LAWS))
    _number(entry.get("exploration", 0), "exploration", where, 0, 1)
    if type(entry.get("self_loops", False)) is not bool:
        raise mismatch(f"{where}.self_loops", quoted(entry["self_loops"]), "true or false")
    if "local_window" in entry:
        _integer(entry, "local_window", where, 0)


def _check_ssa(entry: dict, config: dict, listed: bool, where: str) -> None:
    bias = entry.get("bias", "nothing")
    if bias not in ("local", "none"):
        raise mismatch(f"{where}.bias", quoted(bias), "local or none")
    if bias == "none":
        for name in ("sigma", "grid"):
            if name in entry:
                raise ConvertError(f"{where}.{name} is given, but belongs to bias local")
        if ("keep" in entry) == ("windows" in entry):
            raise ConvertError(f"{where}: bias none needs keep or windows, and not both")
        _integer(entry, "keep" if "keep" in entry else "windows", where)
    else:
        if "keep" in entry:
            raise ConvertError(f"{where}.keep is given, but belongs to bias none")
        _integer(entry, "windows", where)
        _check_sigma(entry, listed, where)
        _check_grid(entry, config["max_position_embeddings"], where)
    if "last_layers" in entry:
        if listed:
            raise ConvertError(f"{where}.last_layers is given, but attention is a list: name the dense layers in it")
        _integer(entry, "last_layers", where, 1, config["num_hidden_layers"])


def _check_sigma(entry: dict, listed: bool, where: str) -> None:
    sigma = entry.get("sigma", "nothing")
    if not isinstance(sigma, list):
        _number(sigma, "sigma", where, 0, _MAX_SIGMA)
        return
    if listed:
        raise mismatch(f"{where}.sigma", quoted(sigma), "one number, as attention is a list")
    if len(sigma) != 2:
        raise mismatch(f"{where}.sigma", quoted(sigma), "a number, or [first layer, last layer]")
    for value in sigma:
        _number(value, "sigma", where, 0, _MAX_SIGMA)


def _check_grid(entry: dict, length: int, where: str) -> None:
    if "grid" not in entry:
        return
    grid = entry["grid"]
    if not isinstance(grid, list) or len(grid) != 2 or not all(type(v) is int and 1 <= v <= _MAX_COUNT for v in grid):
        raise mismatch(f"{where}.grid", quoted(grid), f"[rows, columns], each from 1 to {_MAX_COUNT}")
    if grid[0] * grid[1] != length:
        expected = f"as many places as max_position_embeddings {length}"
        raise mismatch(f"{where}.grid", f"{grid[0]} * {grid[1]} = {grid[0] * grid[1]}", expected)


def _check_block(entry: dict, where: str) -> None:
    pattern = entry.get("pattern", "nothing")
    if not isinstance(pattern, str) or pattern not in _PATTERNS:
        raise mismatch(f"{where}.pattern", quoted(pattern), "one of " + ", ".join(_PATTERNS))
    for name in ("width", "stride", "blocks", "threshold"):
        if name in entry and name not in _PATTERNS[pattern]:
            raise ConvertError(f"{where}.{name} is given, but does not belong to pattern {pattern}")
    size = entry.get("block_size")
    if isinstance(size, dict) and pattern != "learned":
        if set(size) != {"min", "max", "alpha"}:
            raise mismatch(f"{where}.block_size", quoted(size), "an integer, or an object of min, max and alpha")
        least = _integer(size, "min", f"{where}.block_size")
        _integer(size, "max", f"{where}.block_size", least)
        _number(size["alpha"], "alpha", f"{where}.block_size", 0, 1)
    else:
        _integer(entry, "block_size", where)
    if pattern == "local" and "width" in entry:
        _integer(entry, "width", where, 0)
    if pattern == "strided":
        _integer(entry, "stride", where)
    if pattern == "learned":
        _number(entry.get("threshold", "nothing"), "threshold", where, 0, 1)
    if pattern == "list":
        _check_list(entry.get("blocks"), where)


def _check_list(blocks: object, where: str) -> None:
    if not isinstance(blocks, list) or not blocks:
        raise mismatch(f"{where}.blocks", quoted(blocks), "a list of [row, column]")
    for index, block in enumerate(blocks):
        pair = isinstance(block, list) and len(block) == 2
        if not pair or not all(type(v) is int and 0 <= v <= _MAX_COUNT for v in block):
            raise mismatch(f"{where}.blocks[{index}]", quoted(block), "[row, column], each at least 0")
