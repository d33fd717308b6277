"""Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC'11) on NumPy arrays, after the paper's definition."""

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, added to the key after every round
_ROUNDS = 10


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Random words of counters.

    counter: uint32 [..., 4]; key: uint32 [..., 2] (broadcast against the counter). Returns uint32 [..., 4].
    """
    counter = np.asarray(counter, dtype=np.uint32)
    key = np.asarray(key, dtype=np.uint32)
    leading = np.broadcast_shapes(counter.shape[:-1], key.shape[:-1])
    x = [np.broadcast_to(counter[..., i], leading).astype(np.uint64) for i in range(4)]
    k = [np.broadcast_to(key[..., i], leading).astype(np.uint64) for i in range(2)]
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(_ROUNDS):
        product0 = x[0] * _MULTIPLIERS[0]
        product1 = x[2] * _MULTIPLIERS[1]
        x = [
            (product1 >> shift) ^ x[1] ^ k[0],
            product1 & low,
            (product0 >> shift) ^ x[3] ^ k[1],
            product0 & low,
        ]
        k = [(k[i] + np.uint64(_WEYL[i])) & low for i in range(2)]
    return np.stack(x, axis=-1).astype(np.uint32)
