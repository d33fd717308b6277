"""Reading and writing safetensors: 8 bytes of header length, a JSON header, then the tensors end to end."""

from __future__ import annotations

import json
import math
import os
import struct

from .arrays import np
from .dtypes import decode_float32, item_size, known, require_finite
from .errors import ConvertError, mismatch, quoted
from .files import ReplacedFile, open_regular, parse_json

_MAX_HEADER_BYTES = 10 << 20
_MAX_TENSORS = 100_000


def write_safetensors(path: str, tensors: dict) -> None:
    """Writes name -> float32 array in the dict's order, to a temporary file that is then renamed to `path`."""
    header, offset = {}, 0
    for name, values in tensors.items():
        if values.dtype != np.float32:
            raise mismatch(f"{path}: tensor {quoted(name)}: element type", values.dtype, "float32")
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with ReplacedFile(path) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, dtype="<f4").data)


class SafetensorsStateDict:
    """The tensors of a safetensors file, read one at a time."""

    def __init__(self, path: str):
        self.path = path
        self._file = open_regular(path)
        try:
            self._entries = self._header()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _header(self) -> dict:
        """Checks the whole header. name -> (element type, shape, first byte in the file, bytes)."""
        size = os.fstat(self._file.fileno()).st_size
        start = self._file.read(8)
        if len(start) < 8:
            raise mismatch(f"{self.path}: bytes", len(start), "at least 8 (a safetensors header)")
        length = struct.unpack("<Q", start)[0]
        if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            limit = min(size - 8, _MAX_HEADER_BYTES)
            raise mismatch(f"{self.path}: safetensors header length", length, f"2 to {limit}")
        header = parse_json(self._file.read(length), f"{self.path}: header")
        if not isinstance(header, dict):
            raise ConvertError(f"{self.path}: the header is not a JSON object")
        header.pop("__metadata__", None)
        if len(header) > _MAX_TENSORS:
            raise mismatch(f"{self.path}: tensors", len(header), f"at most {_MAX_TENSORS}")
        entries, spans = {}, []
        for name, entry in header.items():
            entries[name] = (*self._entry(name, entry), 8 + length)
            spans.append((*entries[name][2], name))
        end = 0
        for first, last, name in sorted(spans):
            if first != end:
                raise mismatch(f"{self.path}: tensor {quoted(name)}: first byte", first, f"{end} (no gap, no overlap)")
            end = last
        if end != size - 8 - length:
            raise mismatch(f"{self.path}: bytes of data", size - 8 - length, f"{end} by the header")
        return entries

    def _entry(self, name: str, entry: object) -> tuple:
        where = f"{self.path}: tensor {quoted(name)}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ConvertError(f"{where}: the header entry is not dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not known(dtype):
            raise mismatch(f"{where}: dtype", quoted(dtype), "a type that is known here")
        if not (_counts(shape) and len(shape) <= 8):
            raise mismatch(f"{where}: shape", quoted(shape), "up to 8 non-negative integers")
        if not (_counts(offsets) and len(offsets) == 2):
            raise mismatch(f"{where}: data_offsets", quoted(offsets), "two non-negative integers")
        expected = math.prod(shape) * item_size(dtype)
        if offsets[1] - offsets[0] != expected:
            raise mismatch(f"{where}: bytes", offsets[1] - offsets[0], f"{expected} ({dtype} {shape})")
        return dtype, tuple(shape), tuple(offsets)

    def names(self) -> list:
        return list(self._entries)

    def shape(self, name: str) -> tuple:
        return self._entries[name][1]

    def load(self, name: str) -> np.ndarray:
        """float32 values of shape `shape(name)`."""
        dtype, shape, (first, last), data = self._entries[name]
        where = f"{self.path}: tensor {quoted(name)}"
        self._file.seek(data + first)
        raw = self._file.read(last - first)
        if len(raw) != last - first:
            raise mismatch(f"{where}: bytes", len(raw), last - first)
        values = decode_float32(raw, dtype, where).reshape(shape)
        require_finite(values, where)
        return values


def _counts(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)
