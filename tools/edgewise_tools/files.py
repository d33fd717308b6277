"""Opening, parsing and replacing files, with every fault as a ConvertError."""

import json
import os
import stat

from .errors import ConvertError, mismatch, quoted

_MAX_TEXT_BYTES = 64 << 20
_MAX_JSON_DEPTH = 64


def open_regular(path: str):
    """Opens a regular file for binary reading; a pipe or a device is refused instead of waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConvertError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConvertError(f"{path}: not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str) -> bytes:
    """The whole of a regular file of at most 64 MiB."""
    with open_regular(path) as file:
        data = file.read(_MAX_TEXT_BYTES + 1)
    if len(data) > _MAX_TEXT_BYTES:
        raise mismatch(f"{path}: bytes", "more", f"at most {_MAX_TEXT_BYTES}")
    return data


def read_json(path: str) -> object:
    return parse_json(read_bytes(path), path)


def read_lines(path: str) -> list:
    """The lines of a UTF-8 text, without their ends (LF or CRLF)."""
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: byte {error.start}: not UTF-8") from None
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


class ReplacedFile:
    """Opens `<path>.tmp` for binary writing; on success syncs it and renames it to `path`, else removes it."""

    def __init__(self, path: str):
        self._path = path
        self._temporary = path + ".tmp"

    def __enter__(self):
        self._file = open(self._temporary, "wb")
        return self._file

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        if kind is None:
            os.replace(self._temporary, self._path)
        else:
            os.unlink(self._temporary)


def parse_json(data: bytes, where: str) -> object:
    """JSON text (UTF-8, no duplicate key) as Python values; any fault is a ConvertError."""

    def no_duplicates(pairs: list) -> dict:
        result = {}
        for name, value in pairs:
            if name in result:
                raise ConvertError(f"{where}: duplicate key {quoted(name)}")
            result[name] = value
        return result

    def no_constant(name: str) -> None:
        raise ConvertError(f"{where}: {name} is not a JSON number")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except ValueError as error:
        raise ConvertError(f"{where}: not JSON: {quoted(str(error))}") from None
    except RecursionError:
        raise _too_deep(where) from None
    _require_shallow(value, where)
    return value


def _require_shallow(value: object, where: str) -> None:
    """Values that are nested deeper than Python can recurse cannot be compared or written again."""
    level = [value]
    for _ in range(_MAX_JSON_DEPTH + 1):
        containers = [node for node in level if isinstance(node, (dict, list))]
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
    if level:
        raise _too_deep(where)


def _too_deep(where: str) -> ConvertError:
    return ConvertError(f"{where}: JSON that is nested more than {_MAX_JSON_DEPTH} levels deep")
