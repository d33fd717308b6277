"""This project's attention on device memory, through the C interface of bench/gpu/attention_gpu.h, and cuSPARSE's through
that of bench/gpu/cusparse.cu. Takes addresses, so that the memory may be PyTorch's (or, over the emulator, NumPy's)."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p

DRAWN, ALL_PAIRS, GIVEN, MEMBERSHIPS = range(4)  # EdgewiseBenchKind


class Call(ctypes.Structure):
    """EdgewiseBenchCall."""

    _fields_ = [
        ("n", c_int64), ("batch", c_int32), ("heads", c_int32), ("head_dim", c_int32), ("rank", c_int32),
        ("seed", c_uint64), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("out", c_void_p), ("x", c_void_p),
        ("y", c_void_p), ("query_bound", c_void_p), ("key_bound", c_void_p), ("row_offsets", c_void_p),
        ("keys", c_void_p),
    ]  # fmt: skip


class CusparseProblem(ctypes.Structure):
    """EdgewiseCusparseProblem."""

    _fields_ = [
        ("rows", c_int64), ("edges", c_int64), ("head_dim", c_int32), ("scale", c_float), ("row_offsets", c_void_p),
        ("keys", c_void_p), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("out", c_void_p),
    ]  # fmt: skip


class Ours:
    """One device and precision."""

    def __init__(self, library, precision, ordinal=0):
        self._library = ctypes.CDLL(library)
        signatures = {
            "Open": (c_void_p, [c_int, c_int]),
            "Close": (None, [c_void_p]),
            "Error": (c_char_p, [c_void_p]),
            "Time": (c_int, [c_void_p, c_int, POINTER(Call), c_int, c_int, c_int, POINTER(c_double)]),
            "PeakBytes": (c_int, [c_void_p, c_int, POINTER(Call), POINTER(c_int64)]),
            "Check": (c_int, [c_void_p, c_int, POINTER(Call), POINTER(c_double)]),
            "Draw": (c_int, [c_void_p, POINTER(Call), c_int64, POINTER(c_int64)]),
            "ListEdges": (c_int, [c_void_p, c_void_p, c_void_p]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._library, "EdgewiseBench" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)
        self._bench = self._Open(ordinal, precision == "bf16")
        self._check(0)

    def _check(self, failed):
        message = self._Error(self._bench).decode()
        if failed or message:
            raise RuntimeError(message)

    def time(self, kind, calls, first, repeats):
        """Milliseconds of one run, of `repeats` between two events, over the calls in turn from number `first` on."""
        array, milliseconds = (Call * len(calls))(*calls), c_double()
        self._check(self._Time(self._bench, kind, array, len(calls), first, repeats, byref(milliseconds)))
        return milliseconds.value

    def peak_bytes(self, kind, call):
        value = c_int64()
        self._check(self._PeakBytes(self._bench, kind, byref(call), byref(value)))
        return None if value.value < 0 else value.value

    def error(self, kind, call):
        """Largest difference from float64 attention over some rows, relative to the largest value."""
        value = c_double()
        self._check(self._Check(self._bench, kind, byref(call), byref(value)))
        return value.value

    def draw(self, call, most):
        """The number of edges. At most that many can be listed, once."""
        value = c_int64()
        self._check(self._Draw(self._bench, byref(call), most, byref(value)))
        return value.value

    def list_edges(self, row_edges, keys):
        self._check(self._ListEdges(self._bench, row_edges, keys))

    def close(self):
        self._Close(self._bench)


class Cusparse:
    """SDDMM, softmax, SpMM, one after the other, over the same problem in several places of memory."""

    def __init__(self, library, problems, ordinal=0):
        self._library = ctypes.CDLL(library)
        signatures = {
            "Open": (c_void_p, [c_int, POINTER(CusparseProblem)]),
            "Close": (None, [c_void_p]),
            "Error": (c_char_p, [c_void_p]),
            "Time": (c_int, [POINTER(c_void_p), c_int, c_int, c_int, POINTER(c_double)]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._library, "EdgewiseCusparse" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)
        self._opened = []
        for problem in problems:
            self._opened.append(self._Open(ordinal, byref(problem)))
            self._check()

    def _check(self):
        for opened in self._opened:
            message = self._Error(opened).decode()
            if message:
                raise RuntimeError(message)

    def time(self, first, repeats):
        array, milliseconds = (c_void_p * len(self._opened))(*self._opened), c_double()
        self._Time(array, len(self._opened), first, repeats, byref(milliseconds))
        self._check()
        return milliseconds.value

    def close(self):
        for opened in self._opened:
            self._Close(opened)
        self._opened = []
