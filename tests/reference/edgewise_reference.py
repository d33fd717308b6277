"""The forward of docs/model-format.md in float64 NumPy: the oracle for the C++ server.

Written from the mathematics, for clarity: whole n x n arrays, one sequence at a time, no tricks. It shares no code
with the converter or the server, its reader of the model files included. Shapes below: n positions as the model
sees them, D hidden size, h heads of width d, k clusters, C labels. A graph is {"layers": [{"heads":
[{"row_offsets": [n + 1 numbers], "keys": [...]}]}]}: row i of a head attends to
keys[row_offsets[i]:row_offsets[i + 1]]; a key that occurs c times counts c times in the softmax.
"""

import json
import math
import os

import numpy as np

_erf = np.frompyfunc(math.erf, 1, 1)


class Reference:
    """A model of the repository format, read from `directory` (config.json and model.safetensors)."""

    def __init__(self, directory: str):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        self.tensors = read_safetensors(os.path.join(directory, "model.safetensors"))
        config = self.config
        self._layers = config["num_hidden_layers"]
        self._heads = config["num_attention_heads"]
        self._head_dim = config.get("head_dim", config["hidden_size"] // self._heads)
        self._length = config["max_position_embeddings"]
        self._pad = config.get("pad_token_id", 0)
        self._pre_norm = config.get("norm_position", "pre") == "pre"
        self._pooling = config.get("pooling")
        attention = config["attention"]
        self._attention = attention if isinstance(attention, list) else [attention] * self._layers

    def logits(self, token_ids: list, second: list = None, graph: dict = None) -> np.ndarray:
        """Logits before the softmax, float64 [C].

        Token classification: [n, C], rows of pads NaN. Without a graph every layer must be dense.
        """
        states = self._encode_all(token_ids, second, graph)
        if self.config["task"] == "token-classification":
            x, valid = states[0]
            return np.where(valid[:, None], self._classify(x), np.nan)
        pooled = [self._pool(x, valid) for x, valid in states]
        if len(pooled) == 2:
            a, b = pooled
            return self._classify(np.concatenate([a, b, a * b, a - b]))
        return self._classify(pooled[0])

    def probabilities_of_edges(
        self, token_ids: list, second: list = None, graph: dict = None, rates: bool = False
    ) -> list:
        """Per layer (those of a pair's second sequence follow) float64 [h, n, n]: how likely (query, key) is an edge.

        Each layer's input is what `graph` makes of it; without a graph the list ends with the first sampled layer
        of each sequence. The law and the forced edges are applied; pads have 0. The sum of a head is its expected
        number of distinct edges. With `rates` an sbm layer gives p itself, before the law and the forced edges.
        """
        found = []
        self._encode_all(token_ids, second, graph, lambda layer, x, valid: found.append(
            self._edge_probabilities(layer, x, valid, rates)))
        return found

    # One sequence.

    def _encode_all(self, token_ids: list, second: list, graph: dict, visit: object = None) -> list:
        """(x [n, D] after the last norm, valid [n]) of each sequence. visit(layer, attention input, valid) if given."""
        sequences = [token_ids] if second is None else [token_ids, second]
        if len(sequences) != (2 if self.config["task"] == "pair-classification" else 1):
            raise ValueError(f"{len(sequences)} sequences for {self.config['task']}")
        graphs = [None] * len(sequences)
        if graph is not None:
            layers = graph["layers"]
            if len(layers) != self._layers * len(sequences):
                raise ValueError(f"{len(layers)} layers in the graph")
            graphs = [layers[i * self._layers : (i + 1) * self._layers] for i in range(len(sequences))]
        return [self._encode(ids, given, visit) for ids, given in zip(sequences, graphs)]

    def as_seen(self, token_ids: list) -> np.ndarray:
        """The ids as the model sees them, int64 [n]: the CLS token in front, at most N of them."""
        ids = list(token_ids)
        if len(ids) > self._length:
            raise ValueError(f"{len(ids)} tokens, at most {self._length}")
        if self._pooling and self._pooling["kind"] == "cls":
            ids = [self.config["cls_token_id"]] + ids[: self._length - 1]
        ids = np.array(ids, dtype=np.int64)
        if ids.size == 0 or np.all(ids == self._pad):
            raise ValueError("no valid token")
        if ids.min() < 0 or ids.max() >= self.config["vocab_size"]:
            raise ValueError("a token id is outside the vocabulary")
        return ids

    def _encode(self, token_ids: list, graph: list, visit: object) -> tuple:
        ids = self.as_seen(token_ids)
        valid = ids != self._pad
        x = self.tensors["embeddings.word.weight"][ids] + self._positions(len(ids))
        for layer in range(self._layers):
            prefix = f"layers.{0 if self.config.get('tied_layers') else layer}."
            y = self._norm(x, prefix + "attention_norm") if self._pre_norm else x
            if visit is not None:
                visit(layer, y, valid)
            if graph is not None:
                edges = [edge_counts(head, valid) for head in graph[layer]["heads"]]
                if len(edges) != self._heads:
                    raise ValueError(f"{len(edges)} heads in layer {layer} of the graph")
            elif self._attention[layer]["kind"] == "dense":
                edges = [np.outer(valid, valid)] * self._heads
            elif visit is not None:
                return x, valid  # the caller wants edge probabilities, and the next layer's input is random
            else:
                raise ValueError(f"layer {layer} is sampled: a graph is needed")
            x = x + self._attend(y, edges, prefix + "attention.")
            if not self._pre_norm:
                x = self._norm(x, prefix + "attention_norm")
            y = self._norm(x, prefix + "mlp_norm") if self._pre_norm else x
            x = x + self._linear(self._activation(self._linear(y, prefix + "mlp.up")), prefix + "mlp.down")
            if not self._pre_norm:
                x = self._norm(x, prefix + "mlp_norm")
        return (self._norm(x, "final_norm") if self._pre_norm else x), valid

    def _positions(self, n: int) -> np.ndarray:
        """[n, D]"""
        kind = self.config.get("position_embedding", "learned")
        width = self.config["hidden_size"]
        if kind == "learned":
            return self.tensors["embeddings.position.weight"][:n]
        if kind == "none":
            return np.zeros((n, width))
        column = np.arange(width)
        angle = np.arange(n)[:, None] / 10000.0 ** ((column - column % 2) / width)
        return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))

    def _attend(self, y: np.ndarray, edges: list, prefix: str) -> np.ndarray:
        """y [n, D], edges: per head the multiplicity of each (query, key), [n, n]. Returns [n, D]."""
        q, k, v = (self._split(self._linear(y, prefix + part)) for part in ("query", "key", "value"))
        heads = []
        for a in range(self._heads):
            scores = q[a] @ k[a].T / math.sqrt(self._head_dim)
            scores = np.where(edges[a] > 0, scores, -np.inf)
            largest = scores.max(axis=1, keepdims=True)
            weights = edges[a] * np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
            total = weights.sum(axis=1, keepdims=True)
            heads.append(weights / np.where(total > 0, total, 1.0) @ v[a])  # a row without edges gives 0
        return self._linear(np.concatenate(heads, axis=1), prefix + "output")

    def _edge_probabilities(self, layer: int, y: np.ndarray, valid: np.ndarray, rates: bool) -> np.ndarray:
        """y: the attention's input, [n, D]. Returns [h, n, n]."""
        attention, n = self._attention[layer], len(valid)
        pairs = np.outer(valid, valid)
        if attention["kind"] == "dense":
            return np.broadcast_to(pairs.astype(np.float64), (self._heads, n, n))
        prefix = f"layers.{0 if self.config.get('tied_layers') else layer}.attention."
        clusters = self.tensors[prefix + "clusters"]
        sides = []
        for part in ("query", "key"):
            z = self._split(self._linear(y, prefix + part))
            z = self._linear(np.maximum(self._linear(z, prefix + "membership.0"), 0.0), prefix + "membership.1")
            sides.append(1.0 / (1.0 + np.exp(-(z @ clusters.transpose(0, 2, 1)))))  # [h, n, k]
        block = self._block_matrix(prefix, clusters)
        p = sides[0] @ block @ sides[1].transpose(0, 2, 1) + attention.get("exploration", 0.0)
        p = np.where(pairs, np.minimum(p, 1.0), 0.0)
        if rates:
            return p
        if attention["law"] != "bernoulli":  # Poisson counts, of which "at least one" is an edge
            p = -np.expm1(-p)
        distance = np.abs(np.arange(n)[:, None] - np.arange(n))
        forced = (distance == 0) & attention.get("self_loops", False)
        window = attention.get("local_window", 0)
        if window > 0:
            forced |= 2 * distance <= window
        return np.where(forced & pairs, 1.0, p)

    def _block_matrix(self, prefix: str, clusters: np.ndarray) -> np.ndarray:
        """S, [h, k, k]: given, or the softmax over all entries of C C^T."""
        if prefix + "block_matrix" in self.tensors:
            return self.tensors[prefix + "block_matrix"]
        products = clusters @ clusters.transpose(0, 2, 1)
        weights = np.exp(products - products.max(axis=(1, 2), keepdims=True))
        return weights / weights.sum(axis=(1, 2), keepdims=True)

    def _pool(self, x: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """x [n, D] -> [D]"""
        if self._pooling["kind"] == "cls":
            return x[0]
        divisor = valid.sum() if self._pooling["divisor"] == "valid" else self._length
        return x[valid].sum(axis=0) / divisor

    def _classify(self, x: np.ndarray) -> np.ndarray:
        """x [..., X] -> [..., C]"""
        if self.config.get("classifier_hidden_size", 0):
            x = np.maximum(self._linear(x, "classifier.hidden"), 0.0)
        return self._linear(x, "classifier.output")

    # Parts.

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.tensors[name + ".weight"].T + self.tensors[name + ".bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + self.config.get("layer_norm_eps", 1e-5))
        return scaled * self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

    def _activation(self, x: np.ndarray) -> np.ndarray:
        if self.config.get("hidden_act", "gelu") == "relu":
            return np.maximum(x, 0.0)
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))

    def _split(self, x: np.ndarray) -> np.ndarray:
        """[n, h d] -> [h, n, d]; head a has columns a d to (a + 1) d - 1."""
        return x.reshape(len(x), self._heads, self._head_dim).transpose(1, 0, 2)


def edge_counts(head: dict, valid: np.ndarray) -> np.ndarray:
    """The n x n multiplicities of one head of a graph, float64. An edge from or to a pad is a ValueError."""
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
    counts = np.zeros((n, n))
    np.add.at(counts, (rows, keys), 1.0)
    return counts


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
