#!/usr/bin/env python3
"""Compares tests/testdata with a forward of PyTorch's own operators, in float64. Run by hand; needs PyTorch.

    /opt/venv/bin/python tests/reference/check_with_torch.py

Embedding, layer norm, GELU and attention are torch's. Attention gets the edges of golden.json as a mask (dense models:
torch's own causal mask or none) and the biases as torch computes them here. The choices of the reference, the graphs of
ssa and block models, are taken as given: tests/reference/test_patterns.py checks that part.
"""

import json
import math
import os
import sys

import torch
from torch.nn import functional

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from model_files import read_safetensors  # noqa: E402

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")


class TorchModel:
    """A model of the repository format."""

    def __init__(self, directory: str):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        tensors = read_safetensors(os.path.join(directory, "model.safetensors"))
        self.tensors = {name: torch.tensor(values) for name, values in tensors.items()}
        self.heads = self.config["num_attention_heads"]
        self.causal = self.config["task"] == "causal-lm"
        self.pre = self.config.get("norm_position", "pre") == "pre"

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.tensors[name + ".weight"], self.tensors[name + ".bias"])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.tensors[name + ".weight"], self.tensors[name + ".bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self.config.get("layer_norm_eps", 1e-5))

    def score_bias(self, n: int, entry: dict) -> torch.Tensor:
        """[h, n, n]"""
        kind, bias = self.config.get("position_embedding"), torch.zeros(self.heads, n, n, dtype=torch.float64)
        offset = torch.arange(n) - torch.arange(n)[:, None]
        if kind == "relative":
            table = self.tensors["embeddings.relative.weight"]
            bias = bias + table[:, offset + (table.shape[1] - 1) // 2]
        if kind == "alibi":
            def powers(h: int) -> list:
                return [2.0 ** (-8 * (a + 1) / h) for a in range(h)]
            below = 2 ** math.floor(math.log2(self.heads))
            slopes = (powers(below) + powers(2 * below)[::2])[: self.heads]
            bias = bias - torch.tensor(slopes, dtype=torch.float64)[:, None, None] * offset.abs()
        if "bias_values" in entry:
            bias = bias + torch.tensor(entry["bias_values"], dtype=torch.float64).view(n, n)
        if "bias_buckets" in entry:
            bias = bias + self.tensors["embeddings.pairwise.weight"][:, torch.tensor(entry["bias_buckets"]).view(n, n)]
        return bias

    def edges(self, layer: dict, valid: torch.Tensor) -> torch.Tensor:
        """bool [h, n, n], of a layer of a graph; None: dense."""
        n = len(valid)
        if layer is None:
            pairs = valid[:, None] & valid
            return (pairs.tril() if self.causal else pairs).expand(self.heads, n, n)
        result = torch.zeros(self.heads, n, n, dtype=torch.bool)
        for head, rows in enumerate(layer["heads"]):
            for i in range(n):
                result[head, i, rows["keys"][rows["row_offsets"][i] : rows["row_offsets"][i + 1]]] = True
        return result

    def encode(self, sequence: list, entry: dict, layers: list) -> tuple:
        """(x [n, D], valid [n])"""
        config, tensors = self.config, self.tensors
        if "feature_size" in config:
            x = self.linear(torch.tensor(sequence, dtype=torch.float64), "embeddings.features")
            valid = torch.ones(len(x), dtype=torch.bool)
        else:
            if config.get("pooling", {}).get("kind") == "cls":
                sequence = [config["cls_token_id"], *sequence][: config["max_position_embeddings"]]
            ids = torch.tensor(sequence)
            x = functional.embedding(ids, tensors["embeddings.word.weight"])
            valid = ids != config.get("pad_token_id", 0)
        n, width = x.shape
        position = config.get("position_embedding", "learned")
        if position == "learned":
            x = x + tensors["embeddings.position.weight"][:n]
        if position == "sinusoidal":
            angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
            x = x + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        bias = self.score_bias(n, entry)
        for index in range(config["num_hidden_layers"]):
            prefix = f"layers.{0 if config.get('tied_layers') else index}."
            y = self.norm(x, prefix + "attention_norm") if self.pre else x
            q, k, v = (
                self.linear(y, f"{prefix}attention.{part}").view(n, self.heads, -1).transpose(0, 1)
                for part in ("query", "key", "value")
            )
            edges = self.edges(layers[index] if layers else None, valid)
            mask = bias.masked_fill(~edges, -math.inf)
            z = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            z = z.masked_fill(~edges.any(-1, keepdim=True), 0.0)  # torch gives NaN to a row without keys
            x = x + self.linear(z.transpose(0, 1).reshape(n, -1), prefix + "attention.output")
            x = x if self.pre else self.norm(x, prefix + "attention_norm")
            y = self.norm(x, prefix + "mlp_norm") if self.pre else x
            act = functional.relu if config.get("hidden_act") == "relu" else functional.gelu
            x = x + self.linear(act(self.linear(y, prefix + "mlp.up")), prefix + "mlp.down")
            x = x if self.pre else self.norm(x, prefix + "mlp_norm")
        return (self.norm(x, "final_norm") if self.pre else x), valid

    def error(self, entry: dict) -> float:
        """The largest difference from the entry's logits and log-probabilities."""
        config = self.config
        first = entry.get("token_ids") or entry["features"]
        layers, count = entry.get("graph", {}).get("layers"), config["num_hidden_layers"]
        x, valid = self.encode(first, entry, layers and layers[:count])
        if self.causal:
            head = "embeddings.word.weight" if config.get("tie_word_embeddings", True) else "lm_head.weight"
            logits, ids = functional.linear(x[valid], self.tensors[head]), torch.tensor(first)[valid]
            logs = -functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
            given = torch.tensor(entry["log_probabilities"], dtype=torch.float64)
            return max(largest(logits[-1] - torch.tensor(entry["logits"], dtype=torch.float64)), largest(logs - given))
        if config["task"] != "token-classification":
            x = self.pool(x, valid)
            if "second" in entry:
                y = self.pool(*self.encode(entry["second"], entry, layers and layers[count:]))
                x = torch.cat([x, y, x * y, x - y])
        if config.get("classifier_hidden_size"):
            x = functional.relu(self.linear(x, "classifier.hidden"))
        expected = [[math.nan] * config["num_labels"] if row is None else row for row in entry["logits"]]
        return largest((self.linear(x, "classifier.output") - torch.tensor(expected, dtype=torch.float64)).nan_to_num())

    def pool(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        pooling = self.config["pooling"]
        if pooling["kind"] == "cls":
            return x[0]
        divisor = valid.sum() if pooling["divisor"] == "valid" else self.config["max_position_embeddings"]
        return x[valid].sum(0) / divisor


def largest(values: torch.Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0


def main() -> int:
    worst = 0.0
    for case in sorted(os.listdir(TESTDATA)):
        if not os.path.isdir(os.path.join(TESTDATA, case)):
            continue
        model = TorchModel(os.path.join(TESTDATA, case, "1"))
        with open(os.path.join(TESTDATA, case, "golden.json"), encoding="utf-8") as file:
            error = max(model.error(entry) for entry in json.load(file))
        print(f"{case:28} {error:.1e}")
        worst = max(worst, error)
    print(f"largest difference: {worst:.1e}")
    return worst > 1e-9


if __name__ == "__main__":
    sys.exit(main())
