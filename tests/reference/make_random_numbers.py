#!/usr/bin/env python3
"""Writes tests/testdata/random-numbers-v1.txt: golden pair uniforms of docs/random-numbers.md, from this folder's own Philox."""

import os
import sys

import numpy as np

from philox import philox4x32

HEADER = "# seed sample layer head side query_position key_position uniform (times 2^40)\n"


def _block(seed: int, sample: int, word2: int, query: int, block: int) -> np.ndarray:
    """Four random words, uint32 [4]."""
    return philox4x32([block, query, word2, sample], [seed & 0xFFFFFFFF, seed >> 32])


def pair_uniform(seed: int, sample: int, layer: int, head: int, side: int, query: int, key: int) -> int:
    """u * 2^40 of a pair, written from docs/random-numbers.md."""
    word2 = layer << 20 | head << 8 | side << 7
    column = key % 64
    e, t, b = column // 8, column % 8 // 2, column % 2
    high_bytes = _block(seed, sample, word2, query, key // 64 * 4 + t).astype("<u4").tobytes()
    low = int(_block(seed, sample, word2 | 1, query, key // 4)[key % 4])
    return high_bytes[2 * e + b] << 32 | low


def main() -> None:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "random-numbers-v1.txt")
    rng = np.random.default_rng(20240901)
    lines = [HEADER]
    keys = list(range(64)) + [int(k) for k in rng.integers(0, 1 << 20, 200)]
    for key in keys:
        seed = int(rng.integers(0, 1 << 64, dtype=np.uint64)) if key % 3 else key
        fields = (seed, int(rng.integers(0, 300)), int(rng.integers(0, 4096)), int(rng.integers(0, 4096)),
                  int(rng.integers(0, 2)), int(rng.integers(0, 1 << 20)), key)
        lines.append(" ".join(str(f) for f in fields) + f" {pair_uniform(*fields)}\n")
    with open(path, "w") as file:
        file.writelines(lines)


if __name__ == "__main__":
    main()
