"""Which pairs attend: SSA and block patterns of docs/model-format.md, as n x n arrays of booleans.

`valid` is bool [n], n the positions as the model sees them; N the longest input of the model. Causal patterns have
already lost the keys that come after their query; all have lost pads. Random numbers come in as functions.
"""

from fractions import Fraction

import numpy as np


def dense(valid: np.ndarray, causal: bool) -> np.ndarray:
    pairs = np.outer(valid, valid)
    return np.tril(pairs) if causal else pairs


def sigma_of_layer(sigma: object, layer: int, layers: int) -> float:
    """`sigma` is a number, or [first layer, last layer]: linear between."""
    if not isinstance(sigma, list):
        return float(sigma)
    first, last = map(float, sigma)
    return first if layers == 1 else first + (last - first) * layer / (layers - 1)


def _ordered(keys: np.ndarray) -> np.ndarray:
    """argsort, ties to the lower index."""
    return np.argsort(keys, kind="stable")


def _join(n: int, groups: list) -> np.ndarray:
    """groups: (positions of queries, positions of their sources); positions from n on are left out."""
    edges = np.zeros((n, n), dtype=bool)
    for queries, sources in groups:
        queries, sources = (np.array(places, dtype=np.int64) for places in (queries, sources))
        edges[np.ix_(queries[queries < n], sources[sources < n])] = True
    return edges


def ssa_local(valid: np.ndarray, windows: int, sigma: float, normals: object) -> np.ndarray:
    """Algorithm 2 on the valid tokens. normals(window, count) -> float64 [count]."""
    places = np.flatnonzero(valid)
    n = len(places)
    order = _ordered(np.arange(n) + (sigma * n) * normals(0, n))
    w = min(windows, n)
    bounds = [a * n // w for a in range(w + 1)]
    groups = [(places[b:e], places[order[b:e]]) for b, e in zip(bounds, bounds[1:])]
    return _join(len(valid), groups)


def ssa_local_causal(valid: np.ndarray, longest: int, windows: int, sigma: float, normals: object) -> np.ndarray:
    """The same, causal, on positions: each window shuffles 0..(its end - 1) for itself and takes its own places."""
    size = -(-longest // windows)
    groups = []
    for a, begin in enumerate(range(0, longest, size)):
        end = min(begin + size, longest)
        order = _ordered(np.arange(end) + (sigma * longest) * normals(a, end))
        groups.append((np.arange(begin, end), order[begin:end]))
    return np.tril(_join(len(valid), groups)) & dense(valid, True)


def ssa_none(valid: np.ndarray, keep: int, sort_keys: object) -> np.ndarray:
    """Algorithm 1 on the valid tokens. sort_keys(count) -> uint64 [count]."""
    places = np.flatnonzero(valid)
    kept = _ordered(sort_keys(len(places)))[:keep]
    return _join(len(valid), [(places, places[kept])])


def ssa_none_causal(valid: np.ndarray, longest: int, keep: int, sort_keys: object) -> np.ndarray:
    kept = _ordered(sort_keys(longest))[:keep]
    return np.tril(_join(len(valid), [(np.arange(longest), kept)])) & dense(valid, True)


def _shuffled_grid(rows: int, columns: int, shape: tuple, sigma: float, normals: object, window: int) -> np.ndarray:
    """Positions [rows, columns]: columns sorted within each row, then rows within each column."""
    full_rows, full_columns = shape
    grid = np.arange(rows * columns).reshape(rows, columns)
    z = normals(window, rows * columns, False).reshape(rows, columns)
    keys = np.arange(columns) + (sigma * full_columns) * z
    grid = np.stack([grid[r, _ordered(keys[r])] for r in range(rows)])
    z = normals(window, rows * columns, True).reshape(rows, columns)
    keys = np.arange(rows)[:, None] + (sigma * full_rows) * z
    return np.stack([grid[_ordered(keys[:, c]), c] for c in range(columns)], axis=1)


def ssa_grid(valid: np.ndarray, shape: tuple, windows: int, sigma: float, normals: object, causal: bool) -> np.ndarray:
    """Windows of whole rows of a grid [R, C] of positions. normals(window, count, of the rows' shuffle)."""
    rows, columns = shape
    w = min(windows, rows)
    groups = []
    for a in range(w):
        begin, end = a * rows // w, (a + 1) * rows // w
        shuffled = _shuffled_grid(end if causal else rows, columns, shape, sigma, normals, a if causal else 0)
        groups.append((np.arange(begin * columns, end * columns), shuffled[begin:end].reshape(-1)))
    edges = _join(len(valid), groups) & np.outer(valid, valid)
    return np.tril(edges) if causal else edges


def block_size(size: object, length: int) -> int:
    """B; alpha is taken as the decimal number that it is written as."""
    if not isinstance(size, dict):
        return size
    return min(max(size["min"], int(Fraction(str(size["alpha"])) * length)), size["max"])


def block_pattern(attention: dict, blocks: int, scores: object = None) -> np.ndarray:
    """bool [blocks, blocks]: (row, column) is attended. scores: the learned matrix, at least as large."""
    row, column = np.arange(blocks)[:, None], np.arange(blocks)
    kind = attention["pattern"]
    if kind == "diagonal":
        return row == column
    if kind == "local":
        return np.abs(row - column) <= attention.get("width", 1)
    if kind == "strided":
        return (row - column) % attention["stride"] == 0
    if kind == "first_and_diagonal":
        return (row == column) | (column == 0)
    if kind == "list":
        chosen = np.zeros((blocks, blocks), dtype=bool)
        for r, c in attention["blocks"]:
            if r < blocks and c < blocks:
                chosen[r, c] = True
        return chosen
    if kind == "learned":
        return 1.0 / (1.0 + np.exp(-scores[:blocks, :blocks])) >= attention["threshold"]
    raise ValueError(f"block pattern {kind}")


def block(valid: np.ndarray, attention: dict, longest: int, causal: bool, scores: object = None) -> np.ndarray:
    """The pattern's blocks, spread out over positions. Trailing pads are no part of the length."""
    n = len(valid)
    used = int(np.flatnonzero(valid)[-1]) + 1
    size = block_size(attention["block_size"], longest if causal else used)
    of_position = np.arange(n) // size
    blocks = block_pattern(attention, int(of_position[used - 1]) + 1, scores)
    edges = np.zeros((n, n), dtype=bool)
    edges[:used, :used] = blocks[np.ix_(of_position[:used], of_position[:used])]
    return edges & dense(valid, causal)
