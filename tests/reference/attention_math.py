"""Attention of one head over given edges, and what is added to its scores."""

import math

import numpy as np


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, edges: np.ndarray, bias: object = 0.0) -> np.ndarray:
    """softmax over the edges of (q k^T / sqrt(d) + bias), times v; a row without edges gives 0.

    q, k [n, d]; v [n, e]; edges [n, n]: how often each (query, key) counts; bias [n, n] or a number. Returns [n, e].
    """
    scores = q @ k.T / math.sqrt(q.shape[1]) + bias
    scores = np.where(edges > 0, scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    weights = edges * np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0) @ v


def alibi_slopes(heads: int) -> list:
    """The slopes of ALiBi (Press, Smith and Lewis, ICLR 2022), head 1 first."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two that is at most `heads`
    slopes = [2.0 ** (-8.0 * a / power) for a in range(1, power + 1)]
    twice = [2.0 ** (-8.0 * a / (2 * power)) for a in range(1, 2 * power + 1)]
    return slopes + twice[0::2][: heads - power]


def alibi_bias(heads: int, n: int) -> np.ndarray:
    """[h, n, n]: -slope |i - j|"""
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    return -np.array(alibi_slopes(heads))[:, None, None] * distance


def relative_bias(table: np.ndarray, n: int) -> np.ndarray:
    """table [h, 2 N - 1], column j - i + N - 1 for query i and key j. Returns [h, n, n]."""
    longest = (table.shape[1] + 1) // 2
    return table[:, np.arange(n) - np.arange(n)[:, None] + longest - 1]


def pairwise_bias(config: dict, given: object, table: object, heads: int, n: int) -> np.ndarray:
    """[h, n, n] of a request's n * n row-major `given` numbers, or of its bytes and the learned `table` [h, K]."""
    if config is None:
        raise ValueError("a pairwise bias for a model without one")
    given = np.array(given)
    if given.size != n * n:
        raise ValueError(f"a pairwise bias of {given.size} entries for {n} positions")
    given = given.reshape(n, n)
    if config["kind"] == "values":
        return np.broadcast_to(given.astype(np.float64), (heads, n, n))
    if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= config["num_buckets"]:
        raise ValueError(f"a bucket outside 0 to {config['num_buckets'] - 1}")
    return table[:, given]
