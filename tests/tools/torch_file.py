"""Writes checkpoint files as torch.save lays them out, without torch: for tests, damaged ones included.

A value is built from dicts (with str or int keys), lists, tuples, str, int, float, bool, None, NumPy arrays (as
tensors), `Raw` (pickle opcodes as they are) and `View` (a tensor over another array's storage).
"""

import struct
import zipfile
from dataclasses import dataclass

import numpy as np

_STORAGES = {"f4": "FloatStorage", "f2": "HalfStorage", "f8": "DoubleStorage", "i8": "LongStorage"}
LOCATION = "cuda:0"  # what a checkpoint that was trained on a GPU carries


@dataclass
class Raw:
    """Opcodes that leave one value on the stack."""

    code: bytes


@dataclass
class View:
    """A tensor of `shape` with `stride` and `offset` (in elements) over the storage `values`, a flat array.

    Views of one `key` share one storage. `count` overrides the element count that is written for the storage.
    """

    values: np.ndarray
    shape: tuple
    stride: tuple
    offset: int = 0
    key: str = None
    storage: str = None
    count: int = None


class TorchFile:
    """Pickles a value and keeps its storages; `write` makes the zip."""

    def __init__(self, value: object, state_dicts: bool = True):
        self.storages = {}  # key -> bytes
        self._state_dicts = state_dicts
        self._memo = 0
        self.pickle = b"\x80\x02" + self._emit(value) + b"."

    def write(self, path: str, archive: str = "archive", leave_out: tuple = (), stored: bool = True) -> None:
        members = {"data.pkl": self.pickle}
        members.update({f"data/{key}": data for key, data in self.storages.items()})
        members["version"] = b"3\n"
        with zipfile.ZipFile(path, "w") as file:
            for name, data in members.items():
                if name in leave_out:
                    continue
                info = zipfile.ZipInfo(f"{archive}/{name}", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
                start = file.fp.tell() + 30 + len(info.filename)
                padding = -(start + 4) % 64  # the data starts at a multiple of 64 bytes
                info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
                file.writestr(info, data)

    def _put(self) -> bytes:
        self._memo += 1
        number = self._memo - 1
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def _global(self, name: str) -> bytes:
        module, attribute = name.rsplit(".", 1)
        return f"c{module}\n{attribute}\n".encode() + self._put()

    def _text(self, value: str) -> bytes:
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data + self._put()

    def _emit(self, value: object) -> bytes:
        if isinstance(value, Raw):
            return value.code
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, list):
            return b"]" + self._put() + b"(" + b"".join(self._emit(item) for item in value) + b"e"
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, np.ndarray):
            strides = tuple(stride // value.itemsize for stride in np.ascontiguousarray(value).strides)
            value = View(value.reshape(-1), value.shape, strides if value.ndim else ())
        return self._tensor(value)

    def _integer(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if 0 <= value < 65536:
            return b"M" + struct.pack("<H", value)
        if -(1 << 31) <= value < 1 << 31:
            return b"J" + struct.pack("<i", value)
        data = value.to_bytes(9, "little", signed=True)
        return b"\x8a\x09" + data

    def _tuple(self, value: tuple) -> bytes:
        items = b"".join(self._emit(item) for item in value)
        if not value:
            return b")"
        if len(value) <= 3:
            return items + {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)] + self._put()
        return b"(" + items + b"t" + self._put()

    def _ordered_dict(self) -> bytes:
        return self._global("collections.OrderedDict") + b")R" + self._put()

    def _dict(self, value: dict) -> bytes:
        tensors = any(isinstance(item, (np.ndarray, View)) for item in value.values())
        ordered = tensors and self._state_dicts
        code = self._ordered_dict() if ordered else b"}" + self._put()
        code += b"(" + b"".join(self._emit(key) + self._emit(item) for key, item in value.items()) + b"u"
        if ordered:  # the BUILD of a state dict: {"_metadata": OrderedDict([("", {"version": 1})])}
            metadata = self._ordered_dict() + self._text("") + b"}" + self._text("version") + b"K\x01ss"
            code += b"}" + self._put() + self._text("_metadata") + metadata + b"sb"
        return code

    def _tensor(self, view: View) -> bytes:
        key = str(len(self.storages)) if view.key is None else view.key
        self.storages[key] = view.values.tobytes()
        kind = view.storage or _STORAGES[view.values.dtype.str[1:]]
        count = view.values.size if view.count is None else view.count
        record = b"(" + self._text("storage") + self._global("torch." + kind) + self._text(key)
        record += self._text(LOCATION) + self._integer(count) + b"t" + self._put() + b"Q"
        arguments = b"(" + record + self._integer(view.offset) + self._tuple(view.shape) + self._tuple(view.stride)
        arguments += b"\x89" + self._ordered_dict() + b"t" + self._put()
        return self._global("torch._utils._rebuild_tensor_v2") + arguments + b"R" + self._put()
