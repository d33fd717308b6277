"""The draws of SSA, by docs/random-numbers.md ("Orders and tokens"): numbers of a layer that its heads share."""

import numpy as np

from philox import philox4x32

ORDER, GRID_ROWS = 2, 3  # streams


class Draw:
    """The random numbers of one sequence: seed (64 bits), sample, side (1: second of a pair)."""

    def __init__(self, seed: int, sample: int = 0, side: int = 0):
        self._key = (seed & 0xFFFFFFFF, seed >> 32)
        self._sample, self._side = sample, side

    def _words(self, layer: int, window: int, count: int, stream: int) -> np.ndarray:
        """One block of Philox per element 0..count - 1, uint32 [count, 4]. The head is 0."""
        counter = np.empty((count, 4), dtype=np.uint32)
        counter[:, 0] = np.arange(count)
        counter[:, 1] = window
        counter[:, 2] = layer << 20 | self._side << 7 | stream
        counter[:, 3] = self._sample
        return philox4x32(counter, self._key)

    def normals(self, layer: int, window: int, count: int, stream: int = ORDER) -> np.ndarray:
        """Standard normal numbers of elements 0..count - 1 (Box and Muller), float64 [count]."""
        words = self._words(layer, window, count, stream).astype(np.float64)
        radius = np.sqrt(-2.0 * np.log((words[:, 0] + 0.5) / 2.0**32))
        return radius * np.cos(2.0 * np.pi * (words[:, 1] / 2.0**32))

    def sort_keys(self, layer: int, count: int) -> np.ndarray:
        """The keys by which a uniform permutation sorts, uint64 [count]."""
        words = self._words(layer, 0, count, ORDER).astype(np.uint64)
        return words[:, 0] << np.uint64(32) | words[:, 1]
