"""The GPU benchmark's C interface and its Python wrapper, over emulated kernels: device memory is host memory there."""

import ctypes
import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench", "gpu"))
import ours  # noqa: E402

LIBRARY = os.environ.get("EDGEWISE_GPU_BENCH")
N, BATCH, HEADS, DIM, RANK = 70, 2, 2, 32, 32


def address(array):
    return array.ctypes.data


def place(values):
    """A copy in emulated device memory, which lives as long as the process."""
    allocate = ctypes.CDLL(LIBRARY)["_Z10cudaMallocPPvm"]  # of the emulator, which is C++
    allocate.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    memory = ctypes.c_void_p()
    assert allocate(ctypes.byref(memory), max(values.nbytes, 1)) == 0
    placed = np.frombuffer((ctypes.c_char * values.nbytes).from_address(memory.value), values.dtype).reshape(values.shape)
    placed[...] = values
    return placed


class Operands:
    def __init__(self, density, tokens=N):
        random = np.random.default_rng(3)
        rows, width = BATCH * tokens, HEADS * DIM
        self.tokens = tokens
        self.q, self.k, self.v = (
            place(random.standard_normal((rows, width)).astype(np.float32)) for _ in range(3)
        )
        self.out = place(np.zeros((rows, width), np.float32))
        unit = np.sqrt(density / RANK)
        self.x, self.y = (
            place((unit * (1 + 0.2 * random.standard_normal((HEADS, rows, RANK)))).astype(np.float32)) for _ in range(2)
        )
        self.query_bound, self.key_bound = (
            place((np.linalg.norm(side, axis=-1) * 1.000001).astype(np.float32)) for side in (self.x, self.y)
        )
        self.call = ours.Call(
            n=tokens, batch=BATCH, heads=HEADS, head_dim=DIM, rank=RANK, seed=5,
            **{name: address(getattr(self, name))
               for name in ("q", "k", "v", "out", "x", "y", "query_bound", "key_bound")},
        )  # fmt: skip

    def list_edges(self, bench):
        count = bench.draw(self.call, 1 << 30)
        row_edges = place(np.full((BATCH, HEADS, self.tokens), -1, np.int32))
        self.keys = place(np.full(count, -1, np.int32))
        bench.list_edges(address(row_edges), address(self.keys))
        ends = np.cumsum(row_edges, dtype=np.int64).reshape(BATCH * HEADS, self.tokens)
        firsts = ends[:, :1] - row_edges.reshape(BATCH * HEADS, self.tokens)[:, :1]
        self.row_offsets = place(np.concatenate([firsts, ends], axis=1))
        self.call.row_offsets, self.call.keys = address(self.row_offsets), address(self.keys)
        return row_edges


@unittest.skipUnless(LIBRARY, "EDGEWISE_GPU_BENCH names the library")
class OursTest(unittest.TestCase):
    def test_every_kind_agrees_with_float64(self):
        for precision, tolerance in (("fp32", 1e-5), ("bf16", 2e-2)):
            for density in (0.05, 0.9):
                bench = ours.Ours(LIBRARY, precision)
                operands = Operands(density)
                row_edges = operands.list_edges(bench)
                self.assertAlmostEqual(row_edges.mean() / N, density, delta=0.1)
                for kind in (ours.DRAWN, ours.ALL_PAIRS, ours.GIVEN):
                    error = bench.error(kind, operands.call)
                    self.assertLessEqual(error, tolerance, (precision, density, kind))
                    if precision == "bf16":
                        self.assertGreater(error, 0)
                bench.close()

    def test_given_edges_are_those_of_the_draw(self):
        for precision in ("fp32", "bf16"):
            for density, tokens in ((0.01, 800), (0.9, N)):  # drawn by events, and pair by pair
                bench = ours.Ours(LIBRARY, precision)
                operands = Operands(density, tokens)
                operands.list_edges(bench)
                outputs = []
                for kind in (ours.DRAWN, ours.GIVEN):
                    operands.out[...] = np.nan
                    bench.time(kind, [operands.call], 0, 1)
                    outputs.append(operands.out.copy())
                self.assertTrue(np.array_equal(*outputs), (precision, density))
                bench.close()

    def test_keys_ascend_within_the_sequence(self):
        bench = ours.Ours(LIBRARY, "fp32")
        operands = Operands(0.2)
        operands.list_edges(bench)
        self.assertTrue(((operands.keys >= 0) & (operands.keys < N)).all())
        flat = operands.row_offsets.reshape(-1)
        for begin, end in zip(flat[:N], flat[1 : N + 1]):
            self.assertTrue((np.diff(operands.keys[begin:end]) > 0).all())
        bench.close()

    def test_a_wrong_output_is_seen(self):
        bench = ours.Ours(LIBRARY, "fp32")
        operands = Operands(0.2)
        operands.list_edges(bench)
        operands.keys[:] = np.roll(operands.keys, 1)
        self.assertGreater(bench.error(ours.GIVEN, operands.call), 1e-2)
        bench.close()

    def test_times_and_memberships(self):
        bench = ours.Ours(LIBRARY, "fp32")
        operands = Operands(0.2)
        other = Operands(0.2)
        operands.list_edges(bench)
        other.list_edges(bench)
        for kind in (ours.DRAWN, ours.ALL_PAIRS, ours.GIVEN, ours.MEMBERSHIPS):
            self.assertGreaterEqual(bench.time(kind, [operands.call, other.call], 1, 3), 0)
        self.assertIsNone(bench.peak_bytes(ours.DRAWN, operands.call))  # the emulator has no pool to ask
        bench.close()

    def test_a_device_that_is_not_there_says_so(self):
        with self.assertRaisesRegex(RuntimeError, "not there"):
            ours.Ours(LIBRARY, "fp32", ordinal=7)


if __name__ == "__main__":
    unittest.main()
