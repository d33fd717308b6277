"""The forward of docs/model-format.md in float64 NumPy: the oracle for the C++ server.

Written from the mathematics, for clarity: whole n x n arrays, one sequence at a time, no tricks. It shares no code
with the converter or the server, its reader of the model files included. Shapes below: n positions as the model
sees them, D hidden size, h heads of width d, k clusters, C labels, V vocabulary, E features. A graph is {"layers":
[{"heads": [{"row_offsets": [n + 1 numbers], "keys": [...]}]}]}: row i of a head attends to
keys[row_offsets[i]:row_offsets[i + 1]]; a key that occurs c times counts c times in the softmax.
"""

import json
import math
import os

import numpy as np

import memberships
import patterns
from attention_math import alibi_bias, attend, pairwise_bias, relative_bias
from model_files import edge_counts, graph_head, read_safetensors
from permutation import GRID_ROWS, ORDER, Draw

_erf = np.frompyfunc(math.erf, 1, 1)


class Reference:
    """A model of the repository format, read from `directory` (config.json and model.safetensors).

    What its methods take. token_ids: a list; or, on models with a feature_size, rows of E floats. second: the other
    sequence of a pair. graph: the edges of every layer, instead of the model's own. draw: (seed, sample), needed
    without a graph where a layer is ssa. bias: n * n numbers, row-major, on models with a pairwise_bias.
    """

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
        self._causal = config["task"] == "causal-lm"
        attention = config["attention"]
        self._attention = attention if isinstance(attention, list) else [attention] * self._layers

    def logits(self, token_ids: list, second: list = None, graph: dict = None, **given: object) -> np.ndarray:
        """Outputs before any softmax, float64 [C]: logits, or the values of a regression.

        Token classification: [n, C], rows of pads NaN. causal-lm: [V], of the token after the last valid one.
        """
        if self._causal:
            return self.token_logits(token_ids, graph, **given)[-1]
        states = self._encode_all(token_ids, second, graph, **given)
        if self.config["task"] == "token-classification":
            x, valid, _ = states[0]
            return np.where(valid[:, None], self._classify(x), np.nan)
        pooled = [self._pool(x, valid) for x, valid, _ in states]
        if len(pooled) == 2:
            a, b = pooled
            return self._classify(np.concatenate([a, b, a * b, a - b]))
        return self._classify(pooled[0])

    def token_logits(self, token_ids: list, graph: dict = None, **given: object) -> np.ndarray:
        """causal-lm: the logits of the next token at every valid token, [valid tokens, V]."""
        x, valid, _ = self._encode_all(token_ids, None, graph, **given)[0]
        tied = self.config.get("tie_word_embeddings", True)
        return x[valid] @ self.tensors["embeddings.word.weight" if tied else "lm_head.weight"].T

    def log_probabilities(self, token_ids: list, graph: dict = None, **given: object) -> np.ndarray:
        """causal-lm: ln p(token | those before it) of every valid token but the first, [valid tokens - 1]."""
        logits = self.token_logits(token_ids, graph, **given)[:-1]
        largest = logits.max(axis=1, keepdims=True)
        logs = logits - largest - np.log(np.exp(logits - largest).sum(axis=1, keepdims=True))
        following = [token for token in token_ids if token != self._pad][1:]
        return logs[np.arange(len(following)), following]

    def attended(self, token_ids: list, second: list = None, graph: dict = None, **given: object) -> dict:
        """The graph that the model attends over: its own, or the given one. A pair's second sequence follows."""
        states = self._encode_all(token_ids, second, graph, **given)
        return {"layers": [{"heads": [graph_head(e) for e in edges]} for _, _, used in states for edges in used]}

    def probabilities_of_edges(
        self, token_ids: list, second: list = None, graph: dict = None, rates: bool = False
    ) -> list:
        """Per layer (those of a pair's second sequence follow) float64 [h, n, n]: how likely (query, key) is an edge.

        Each layer's input is what `graph` makes of it; without a graph the list ends with the first sampled layer
        of each sequence. The law and the forced edges are applied; pads have 0. The sum of a head is its expected
        number of distinct edges. With `rates` an sbm layer gives p itself, before the law and the forced edges.
        """
        found = []
        self._encode_all(token_ids, second, graph, visit=lambda layer, x, valid: found.append(
            self._edge_probabilities(layer, x, valid, rates)))
        return found

    # One sequence.

    def _encode_all(
        self, token_ids: list, second: list, graph: dict, draw: tuple = None, bias: list = None, visit: object = None
    ) -> list:
        """(x [n, D] after the last norm, valid [n], per layer the edges of its heads) of each sequence.

        visit(layer, attention input, valid) if given.
        """
        sequences = [token_ids] if second is None else [token_ids, second]
        if len(sequences) != (2 if self.config["task"] == "pair-classification" else 1):
            raise ValueError(f"{len(sequences)} sequences for {self.config['task']}")
        graphs = [None] * len(sequences)
        if graph is not None:
            layers = graph["layers"]
            if len(layers) != self._layers * len(sequences):
                raise ValueError(f"{len(layers)} layers in the graph")
            graphs = [layers[i * self._layers : (i + 1) * self._layers] for i in range(len(sequences))]
        draws = [None if draw is None else Draw(*draw, side) for side in range(len(sequences))]
        return [self._encode(*one, bias, visit) for one in zip(sequences, graphs, draws)]

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

    def _embed(self, sequence: list) -> tuple:
        """(x [n, D], valid [n])"""
        if "feature_size" in self.config:
            rows = np.array(sequence, dtype=np.float64)
            if rows.ndim != 2 or rows.shape[1] != self.config["feature_size"] or not 0 < len(rows) <= self._length:
                raise ValueError(f"features of shape {rows.shape}")
            return self._linear(rows, "embeddings.features") + self._positions(len(rows)), np.ones(len(rows), bool)
        ids = self.as_seen(sequence)
        return self.tensors["embeddings.word.weight"][ids] + self._positions(len(ids)), ids != self._pad

    def _encode(self, sequence: list, graph: list, draw: Draw, given_bias: list, visit: object) -> tuple:
        x, valid = self._embed(sequence)
        bias = self._score_bias(len(valid), given_bias)
        used = []
        for layer in range(self._layers):
            prefix = self._prefix(layer)
            y = self._norm(x, prefix + "attention_norm") if self._pre_norm else x
            if visit is not None:
                visit(layer, y, valid)
            if graph is not None:
                edges = [edge_counts(head, valid, self._causal) for head in graph[layer]["heads"]]
                if len(edges) != self._heads:
                    raise ValueError(f"{len(edges)} heads in layer {layer} of the graph")
            elif visit is not None and self._attention[layer]["kind"] == "sbm":
                return x, valid, used  # the caller wants edge probabilities, and the next layer's input is random
            else:
                edges = [self._own_edges(layer, valid, draw).astype(np.float64)] * self._heads
            used.append(edges)
            x = x + self._attend(y, edges, bias, prefix + "attention.")
            if not self._pre_norm:
                x = self._norm(x, prefix + "attention_norm")
            y = self._norm(x, prefix + "mlp_norm") if self._pre_norm else x
            x = x + self._linear(self._activation(self._linear(y, prefix + "mlp.up")), prefix + "mlp.down")
            if not self._pre_norm:
                x = self._norm(x, prefix + "mlp_norm")
        return (self._norm(x, "final_norm") if self._pre_norm else x), valid, used

    def _own_edges(self, layer: int, valid: np.ndarray, draw: Draw) -> np.ndarray:
        """The pairs that a layer attends to without a given graph, the same for all heads: bool [n, n]."""
        attention, causal, longest = self._attention[layer], self._causal, self._length
        kind = attention["kind"]
        if kind == "ssa" and layer < self._layers - attention.get("last_layers", self._layers):
            kind = "dense"
        if kind == "dense":
            return patterns.dense(valid, causal)
        if kind == "block":
            scores = self.tensors.get(self._prefix(layer) + "attention.block_scores")
            return patterns.block(valid, attention, longest, causal, scores)
        if kind == "sbm" or draw is None:
            raise ValueError(f"layer {layer} is sampled: a graph is needed" + (", or a draw" if kind == "ssa" else ""))
        if attention["bias"] == "none":
            length = longest if causal else int(valid.sum())
            keep = attention["keep"] if "keep" in attention else -(-length // attention["windows"])
            if causal:
                return patterns.ssa_none_causal(valid, longest, keep, lambda count: draw.sort_keys(layer, count))
            return patterns.ssa_none(valid, keep, lambda count: draw.sort_keys(layer, count))
        windows, sigma = attention["windows"], patterns.sigma_of_layer(attention["sigma"], layer, self._layers)

        def normals(window: int, count: int, of_rows: bool = False) -> np.ndarray:
            return draw.normals(layer, window, count, GRID_ROWS if of_rows else ORDER)

        if "grid" in attention:
            return patterns.ssa_grid(valid, tuple(attention["grid"]), windows, sigma, normals, causal)
        if causal:
            return patterns.ssa_local_causal(valid, longest, windows, sigma, normals)
        return patterns.ssa_local(valid, windows, sigma, normals)

    def _attend(self, y: np.ndarray, edges: list, bias: np.ndarray, prefix: str) -> np.ndarray:
        """y [n, D], edges: per head the multiplicity of each (query, key), [n, n]; bias [h, n, n]. Returns [n, D]."""
        q, k, v = (self._split(self._linear(y, prefix + part)) for part in ("query", "key", "value"))
        heads = [attend(q[a], k[a], v[a], edges[a], bias[a]) for a in range(self._heads)]
        return self._linear(np.concatenate(heads, axis=1), prefix + "output")

    def _score_bias(self, n: int, given: list) -> np.ndarray:
        """The bias that is added to the scaled scores, [h, n, n]."""
        bias = np.zeros((self._heads, n, n))
        kind = self.config.get("position_embedding", "learned")
        if kind == "alibi":
            bias = bias + alibi_bias(self._heads, n)
        elif kind == "relative":
            bias = bias + relative_bias(self.tensors["embeddings.relative.weight"], n)
        if given is not None:
            table = self.tensors.get("embeddings.pairwise.weight")
            bias = bias + pairwise_bias(self.config.get("pairwise_bias"), given, table, self._heads, n)
        return bias

    def _positions(self, n: int) -> np.ndarray:
        """The position that is added to the embedding, [n, D]."""
        kind = self.config.get("position_embedding", "learned")
        width = self.config["hidden_size"]
        if kind == "learned":
            return self.tensors["embeddings.position.weight"][:n]
        if kind != "sinusoidal":
            return np.zeros((n, width))
        column = np.arange(width)
        angle = np.arange(n)[:, None] / 10000.0 ** ((column - column % 2) / width)
        return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))

    def _edge_probabilities(self, layer: int, y: np.ndarray, valid: np.ndarray, rates: bool) -> np.ndarray:
        """y: the attention's input, [n, D]. Returns [h, n, n]."""
        attention, pairs = self._attention[layer], np.outer(valid, valid)
        if attention["kind"] != "sbm":
            edges = self._own_edges(layer, valid, None)
            return np.broadcast_to(edges.astype(np.float64), (self._heads, *edges.shape))
        prefix = self._prefix(layer) + "attention."
        clusters = self.tensors[prefix + "clusters"]
        names = [f"membership.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")]
        mlp = [self.tensors[prefix + name] for name in names]
        query, key = (
            memberships.membership(self._split(self._linear(y, prefix + part)), mlp, clusters)
            for part in ("query", "key")
        )
        given = self.tensors.get(prefix + "block_matrix")
        block = memberships.block_matrix(clusters) if given is None else given
        p = memberships.edge_rates(query, key, block, attention, pairs)
        return p if rates else memberships.edge_probabilities(p, attention, pairs)

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

    def _prefix(self, layer: int) -> str:
        """The prefix of the names of a layer's tensors."""
        return f"layers.{0 if self.config.get('tied_layers') else layer}."

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
