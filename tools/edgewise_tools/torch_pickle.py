"""An interpreter for the data.pkl of a torch zip file that builds plain values and can do nothing else.

Python's own unpickler calls what the file names. This one never does: it walks the opcodes (decoded by
`pickletools.genops`, which executes nothing), knows the few that `torch.save` writes for nested dicts, lists,
numbers and tensors, and turns the handful of names on the allow-list into records. Everything else is an error
that names the opcode or the global.
"""

import pickletools
from collections import OrderedDict
from dataclasses import dataclass

from .errors import ConvertError, mismatch, quoted

STORAGE_TYPES = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}


@dataclass(frozen=True)
class Storage:
    """The place of a tensor's elements: the member `data/<key>`, `count` elements of type `dtype`."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage. `offset` and `stride` count elements; nothing is checked against the storage yet."""

    storage: Storage
    offset: int
    shape: tuple
    stride: tuple


@dataclass(frozen=True)
class _Global:
    """A name on the allow-list, standing for itself."""

    name: str


_MARK = object()
_ORDERED_DICT = _Global("collections.OrderedDict")
_REBUILD_TENSOR = _Global("torch._utils._rebuild_tensor_v2")
_REBUILD_PARAMETER = _Global("torch._utils._rebuild_parameter")
_ALLOWED = {g.name: g for g in (_ORDERED_DICT, _REBUILD_TENSOR, _REBUILD_PARAMETER)}
_ALLOWED.update({f"torch.{name}": _Global(f"torch.{name}") for name in STORAGE_TYPES})

_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(data: bytes, where: str) -> object:
    """The value that `data` describes: dicts, lists, tuples, numbers, strings, None and `Tensor` records."""
    reader = _Reader(where)
    try:
        for opcode, argument, position in pickletools.genops(data):
            reader.at = f"{where}: byte {position}"
            if opcode.name == "STOP":
                return reader.pop()
            reader.step(opcode.name, argument)
    except ConvertError:
        raise
    except (ValueError, IndexError, OverflowError) as error:
        raise ConvertError(f"{where}: not a readable pickle: {quoted(str(error))}") from None
    raise ConvertError(f"{where}: ends before the STOP opcode")


def _is_count(value: object) -> bool:
    """A non-negative int below 2^63 (bool is no int here)."""
    return type(value) is int and 0 <= value < 1 << 63


def _is_counts(value: object) -> bool:
    return type(value) is tuple and len(value) <= 8 and all(_is_count(v) for v in value)


class _Reader:
    """The stack, the memo and one method per group of opcodes."""

    def __init__(self, where: str):
        self.at = where
        self._stack: list = []
        self._memo: dict = {}

    def fail(self, message: str) -> ConvertError:
        return ConvertError(f"{self.at}: {message}")

    def pop(self) -> object:
        if not self._stack or self._stack[-1] is _MARK:
            raise self.fail("the pickle takes a value from an empty stack")
        return self._stack.pop()

    def _pop_to_mark(self) -> list:
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i] is _MARK:
                values = self._stack[i + 1 :]
                del self._stack[i:]
                return values
        raise self.fail("no MARK on the stack")

    def step(self, name: str, argument: object) -> None:
        if name in ("PROTO", "FRAME"):
            return
        if name in _LITERALS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            self._stack.append({})
        elif name == "EMPTY_LIST":
            self._stack.append([])
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name == "TUPLE":
            self._stack.append(tuple(self._pop_to_mark()))
        elif name in _TUPLES:
            values = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(values)))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            value = self.pop()
            self._memo[len(self._memo) if argument is None else argument] = value
            self._stack.append(value)
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self._memo:
                raise self.fail(f"memo entry {argument} is read before it is written")
            self._stack.append(self._memo[argument])
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self._set_items([key, value])
        elif name == "SETITEMS":
            self._set_items(self._pop_to_mark())
        elif name == "APPEND":
            self._extend([self.pop()])
        elif name == "APPENDS":
            self._extend(self._pop_to_mark())
        elif name == "GLOBAL":
            self._global(str(argument).replace(" ", ".", 1))
        elif name == "STACK_GLOBAL":
            attribute, module = self.pop(), self.pop()
            self._global(f"{module}.{attribute}" if type(module) is type(attribute) is str else "a value")
        elif name == "BINPERSID":
            self._stack.append(self._storage(self.pop()))
        elif name == "REDUCE":
            arguments, function = self.pop(), self.pop()
            self._stack.append(self._reduce(function, arguments))
        elif name == "BUILD":
            self._build(self.pop())
        else:
            raise self.fail(f"pickle opcode {name} is not allowed in a checkpoint")

    def _global(self, name: str) -> None:
        if name not in _ALLOWED:
            raise self.fail(f"refuses the global {quoted(name)}: only tensors and plain containers are read")
        self._stack.append(_ALLOWED[name])

    def _set_items(self, values: list) -> None:
        target = self.pop()
        if not isinstance(target, dict) or len(values) % 2:
            raise self.fail("SETITEMS needs a dict and pairs of key and value")
        for key, value in zip(values[0::2], values[1::2]):
            if type(key) not in (str, int):
                raise self.fail(f"a dict key is of type {type(key).__name__}, expected str or int")
            if key in target:
                raise self.fail(f"duplicate key {quoted(key)}")
            target[key] = value
        self._stack.append(target)

    def _extend(self, values: list) -> None:
        target = self.pop()
        if type(target) is not list:
            raise self.fail("APPENDS needs a list")
        target.extend(values)
        self._stack.append(target)

    def _storage(self, record: object) -> Storage:
        """("storage", storage type, key, device location, count) -> Storage; the location does not matter here."""
        if type(record) is not tuple or len(record) != 5 or record[0] != "storage":
            raise self.fail("a persistent id is not of the form ('storage', type, key, location, count)")
        _, kind, key, _, count = record
        if not isinstance(kind, _Global) or kind.name.removeprefix("torch.") not in STORAGE_TYPES:
            raise self.fail("a persistent id names no storage type")
        if type(key) is not str or not _is_count(count):
            raise self.fail("a persistent id has no text key or no element count")
        return Storage(key, STORAGE_TYPES[kind.name.removeprefix("torch.")], count)

    def _reduce(self, function: object, arguments: object) -> object:
        if type(arguments) is not tuple:
            raise self.fail("REDUCE needs a tuple of arguments")
        if function is _ORDERED_DICT:
            if arguments:
                raise mismatch(f"{self.at}: OrderedDict arguments", len(arguments), 0)
            return OrderedDict()
        if function is _REBUILD_PARAMETER:
            if len(arguments) != 3 or not isinstance(arguments[0], Tensor):
                raise self.fail("_rebuild_parameter has no tensor")
            return arguments[0]
        if function is _REBUILD_TENSOR:
            if len(arguments) not in (6, 7):
                raise mismatch(f"{self.at}: _rebuild_tensor_v2 arguments", len(arguments), "6 or 7")
            storage, offset, shape, stride = arguments[:4]
            if not isinstance(storage, Storage):
                raise self.fail("_rebuild_tensor_v2 has no storage")
            if not (_is_count(offset) and _is_counts(shape) and _is_counts(stride) and len(shape) == len(stride)):
                raise self.fail("_rebuild_tensor_v2 has an offset, shape or stride that is not non-negative integers")
            return Tensor(storage, offset, shape, stride)
        raise self.fail("REDUCE calls something that is not a function of the allow-list")

    def _build(self, state: object) -> None:
        """The attributes of a state dict: only `_metadata` (module versions) occurs, and it is not needed."""
        if not self._stack or not isinstance(self._stack[-1], OrderedDict):
            raise self.fail("BUILD is allowed on an OrderedDict only")
        if not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise self.fail("BUILD sets something other than _metadata")
