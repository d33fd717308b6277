"""The files of a model and the graphs of a request, as plain NumPy values."""

import json

import numpy as np


def read_safetensors(path: str) -> dict:
    """name -> float64 array, of a file whose tensors are all F32."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is {entry['dtype']}")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype="<f4").astype(np.float64).reshape(entry["shape"])
    return tensors


def edge_counts(head: dict, valid: np.ndarray, causal: bool = False) -> np.ndarray:
    """The n x n multiplicities of one head of a graph, float64.

    An edge from or to a pad is a ValueError, and where `causal` one to a later token.
    """
    n = len(valid)
    offsets = np.array(head["row_offsets"], dtype=np.int64)
    keys = np.array(head["keys"], dtype=np.int64)
    if len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != len(keys) or np.any(np.diff(offsets) < 0):
        raise ValueError(f"row_offsets do not describe {n} rows and {len(keys)} keys")
    if keys.size and (keys.min() < 0 or keys.max() >= n):
        raise ValueError("a key is outside the sequence")
    rows = np.repeat(np.arange(n), np.diff(offsets))
    if not (np.all(valid[rows]) and np.all(valid[keys])):
        raise ValueError("an edge touches a pad")
    if causal and np.any(keys > rows):
        raise ValueError("an edge leads to a later token")
    counts = np.zeros((n, n))
    np.add.at(counts, (rows, keys), 1.0)
    return counts


def graph_head(edges: np.ndarray) -> dict:
    """One head of a graph with the edges where `edges` [n, n] is not 0, the keys of a row ascending."""
    offsets = np.concatenate([[0], np.cumsum((edges != 0).sum(axis=1))])
    return {"row_offsets": offsets.tolist(), "keys": np.nonzero(edges)[1].tolist()}
