"""Element types of stored tensors, by their safetensors names, and their conversion to float32."""

from __future__ import annotations

from .arrays import np
from .errors import ConvertError, mismatch

# name -> (NumPy code without byte order, bytes per element). BF16 is read as the upper half of a float32.
_TYPES = {
    "F64": ("f8", 8),
    "F32": ("f4", 4),
    "F16": ("f2", 2),
    "BF16": ("u2", 2),
    "I64": ("i8", 8),
    "I32": ("i4", 4),
    "I16": ("i2", 2),
    "I8": ("i1", 1),
    "U8": ("u1", 1),
    "BOOL": ("u1", 1),
}
FLOATING = ("F32", "F16", "BF16", "F64")


def item_size(dtype: str) -> int:
    """Bytes per element; KeyError for an unknown name."""
    return _TYPES[dtype][1]


def known(dtype: object) -> bool:
    return isinstance(dtype, str) and dtype in _TYPES


def decode_float32(raw: bytes, dtype: str, where: str, byte_order: str = "<") -> np.ndarray:
    """`raw` as a flat float32 array. Refuses integer types and values that are not finite in float32."""
    if dtype not in FLOATING:
        raise mismatch(f"{where}: element type", dtype, "one of " + ", ".join(FLOATING))
    values = np.frombuffer(raw, dtype=byte_order + _TYPES[dtype][0])
    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def require_finite(values: np.ndarray, where: str) -> None:
    """Raises ConvertError with the flat index of the first value that is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        first = int(bad[0])
        raise ConvertError(
            f"{where}: {bad.size} of {values.size} values are not finite in float32, the first at flat index "
            f"{first} ({values.reshape(-1)[first]})"
        )
