"""Reads tensors out of a file that torch.save wrote (torch >= 1.6), without torch.

The container is a zip of stored members `<archive>/data.pkl`, `<archive>/data/<key>`, `<archive>/version`.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib

from .arrays import np
from .dtypes import decode_float32, item_size, require_finite
from .errors import ConvertError, mismatch, quoted
from .files import open_regular
from .torch_pickle import Tensor, read_pickle

_MAX_MEMBERS = 100_000
_MAX_PICKLE_BYTES = 64 << 20
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


class TorchZip:
    """An open checkpoint. `root` is the saved value, its tensors as `Tensor` records; `load` fetches their data."""

    def __init__(self, path: str):
        self.path = path
        self._file = open_regular(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if self._file.read(4) != b"PK\x03\x04":
            raise ConvertError(f"{self.path}: not a zip file as torch.save writes it (torch >= 1.6)")
        try:
            self._zip = zipfile.ZipFile(self._file)
        except _ZIP_ERRORS as error:
            raise ConvertError(f"{self.path}: damaged zip file: {quoted(str(error))}") from None
        members = self._zip.infolist()
        if len(members) > _MAX_MEMBERS:
            raise mismatch(f"{self.path}: zip members", len(members), f"at most {_MAX_MEMBERS}")
        self._members = {member.filename: member for member in members}
        if len(self._members) != len(members):
            raise ConvertError(f"{self.path}: two zip members have one name")
        if sum(member.file_size for member in members) > size:
            raise ConvertError(f"{self.path}: the zip members are larger than the file")
        pickles = [name for name in self._members if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise mismatch(f"{self.path}: members <archive>/data.pkl", len(pickles), 1)
        self._prefix = pickles[0][: -len("data.pkl")]
        self._byte_order = "<"
        if self._prefix + "byteorder" in self._members:
            if self._read(self._prefix + "byteorder", 16).strip() == b"big":
                self._byte_order = ">"
        self.root = read_pickle(self._read(pickles[0], _MAX_PICKLE_BYTES), f"{self.path}: {quoted(pickles[0])}")

    def _read(self, name: str, limit: int) -> bytes:
        """A stored member, at most `limit` bytes long; its checksum is verified."""
        where = f"{self.path}: member {quoted(name)}"
        member = self._members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise ConvertError(f"{where}: compressed or encrypted, torch.save stores members as they are")
        if member.file_size > limit:
            raise mismatch(f"{where}: bytes", member.file_size, f"at most {limit}")
        try:
            return self._zip.read(member)
        except _ZIP_ERRORS as error:
            raise ConvertError(f"{where}: cannot be read: {quoted(str(error))}") from None

    def load(self, tensor: Tensor, name: str) -> np.ndarray:
        """The tensor's values, float32, C order, of shape `tensor.shape`."""
        where = f"{self.path}: tensor {quoted(name)}"
        storage = tensor.storage
        member = self._prefix + "data/" + storage.key
        if member not in self._members:
            raise ConvertError(f"{where}: its data, member {quoted(member)}, is missing from the file")
        expected = storage.count * item_size(storage.dtype)
        found = self._members[member].file_size
        if found != expected:
            raise mismatch(
                f"{where}: bytes in member {quoted(member)}", found, f"{expected} ({storage.count} of {storage.dtype})"
            )
        _check_view(tensor, where)
        flat = decode_float32(self._read(member, expected), storage.dtype, where, self._byte_order)
        if tensor.stride == _c_order(tensor.shape):
            values = flat[tensor.offset : tensor.offset + math.prod(tensor.shape)].reshape(tensor.shape)
        else:
            index = np.array(tensor.offset, dtype=np.int64)
            for length, stride in zip(tensor.shape, tensor.stride):
                index = index[..., None] + np.arange(length, dtype=np.int64) * stride
            values = flat[index]
        require_finite(values, where)
        return values


def _c_order(shape: tuple) -> tuple:
    """The strides, in elements, of a row-major array."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _check_view(tensor: Tensor, where: str) -> None:
    """The view stays inside its storage and no element occurs twice."""
    if 0 in tensor.shape:
        raise mismatch(f"{where}: shape", list(tensor.shape), "no dimension of 0")
    reach = 0  # the largest index, relative to the offset, of the dimensions seen so far
    for stride, length in sorted(zip(tensor.stride, tensor.shape)):
        if length > 1:
            if stride <= reach:
                raise ConvertError(
                    f"{where}: shape {list(tensor.shape)} with strides {list(tensor.stride)} uses elements twice"
                )
            reach += stride * (length - 1)
    if tensor.offset + reach >= tensor.storage.count:
        raise ConvertError(
            f"{where}: offset {tensor.offset}, shape {list(tensor.shape)} and strides {list(tensor.stride)} reach "
            f"element {tensor.offset + reach} of a storage of {tensor.storage.count}"
        )


class TorchStateDict:
    """The state dict of a checkpoint: at the top of the file, or under one of `keys` ("model_state_dict", ...)."""

    def __init__(self, path: str, keys: tuple = ("model_state_dict", "state_dict", "model")):
        self.path = path
        self._zip = TorchZip(path)
        self.root = root = self._zip.root  # all that the file holds, its tensors as `Tensor` records
        if isinstance(root, dict):
            found = [key for key in keys if isinstance(root.get(key), dict)]
            if len(found) == 1:
                root = root[found[0]]
        if not isinstance(root, dict) or not any(isinstance(value, Tensor) for value in root.values()):
            self.close()
            raise ConvertError(f"{path}: no state dict at the top of the file or under {', '.join(keys)}")
        self._tensors = {name: value for name, value in root.items() if isinstance(value, Tensor)}
        numbers = [name for name in self._tensors if type(name) is not str]
        if numbers:
            self.close()
            raise ConvertError(f"{path}: a tensor has the number {quoted(numbers[0])} for a name")

    def close(self) -> None:
        self._zip.close()

    def names(self) -> list:
        return list(self._tensors)

    def shape(self, name: str) -> tuple:
        return self._tensors[name].shape

    def same_values(self, one: str, other: str) -> bool:
        """Whether two names are the same view of one storage, as tied weights are."""
        return self._tensors[one] == self._tensors[other]

    def load(self, name: str) -> np.ndarray:
        """float32 values of shape `shape(name)`."""
        return self._zip.load(self._tensors[name], name)
