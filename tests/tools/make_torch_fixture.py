#!/usr/bin/env python3
"""Makes data/pair_sbm.*: a checkpoint by the real torch.save, and the logits of a PyTorch forward. Run by hand.

Needs PyTorch; the tests do not. The module below has the parameter names and the evaluation semantics of the
SBM-Transformer authors' dual model (pads in place, masks on the keys, mean over the padded length), and nothing of
its training.
"""

import json
import math
import os
import sys

import torch
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpoints import SMALL  # noqa: E402


class Attention(nn.Module):
    """Multi-head attention over edges drawn from the block model; `drawn` collects (p [h, n, n], edges [h, n, n])."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.width = c["num_head"], c["head_dim"]
        inner = self.heads * self.width
        self.W_q, self.W_k, self.W_v = (nn.Linear(c["transformer_dim"], inner) for _ in range(3))
        self.attn = nn.Module()
        self.attn.clusters = nn.Parameter(torch.randn(self.heads, c["num_clusters"], self.width))
        self.attn.proj = nn.Sequential(
            nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, self.width)
        )
        self.ff = nn.Linear(inner, c["transformer_dim"])

    def forward(self, x: torch.Tensor, mask: torch.Tensor, drawn: list) -> torch.Tensor:
        n = len(x)
        q, k, v = (w(x).view(n, self.heads, self.width).transpose(0, 1) for w in (self.W_q, self.W_k, self.W_v))
        clusters = self.attn.clusters
        block = torch.einsum("hid,hjd->hij", clusters, clusters)
        block = block.flatten(1).softmax(-1).view_as(block)
        left, right = (torch.sigmoid(torch.einsum("hnd,hkd->hnk", self.attn.proj(t), clusters)) for t in (q, k))
        p = (torch.einsum("hik,hkl,hjl->hij", left, block, right) + 0.01).clamp(0, 1)
        edges = torch.bernoulli(p)
        drawn.append((p, edges))
        scores = torch.einsum("hid,hjd->hij", q, k) / math.sqrt(self.width)
        weights = scores.masked_fill(mask == 0, -math.inf).softmax(-1) * edges
        weights = nn.functional.normalize(weights, p=1, dim=-1)
        return self.ff((weights @ v).transpose(0, 1).reshape(n, -1))


class Layer(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, hidden = c["transformer_dim"], c["transformer_hidden_dim"]
        self.norm1, self.mha, self.norm2 = nn.LayerNorm(width), Attention(c), nn.LayerNorm(width)
        self.mlpblock = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Identity(), nn.Linear(hidden, width))


class Pair(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width, hidden = c["transformer_dim"], c["transformer_hidden_dim"]
        self.model = nn.Module()
        self.model.embeddings = nn.Module()
        self.model.embeddings.word_embeddings = nn.Embedding(c["vocab_size"], width)
        self.model.embeddings.position_embeddings = nn.Embedding(c["max_seq_len"], width)
        self.layers = c["num_layers"]
        for i in range(self.layers):
            self.model.add_module(f"transformer_{i}", Layer(c))
        self.model.norm = nn.LayerNorm(width)
        self.seq_classifer = nn.Module()
        self.seq_classifer.mlpblock = nn.Sequential(
            nn.Linear(4 * width, hidden), nn.ReLU(), nn.Linear(hidden, c["num_classes"])
        )

    def encode(self, ids: torch.Tensor, drawn: list) -> torch.Tensor:
        mask = (ids != 0).to(torch.float64)
        embeddings = self.model.embeddings
        x = embeddings.word_embeddings(ids) + embeddings.position_embeddings(torch.arange(len(ids)))
        for i in range(self.layers):
            layer = getattr(self.model, f"transformer_{i}")
            x = x + layer.mha(layer.norm1(x), mask, drawn)
            x = x + layer.mlpblock(layer.norm2(x))
        return (self.model.norm(x) * mask[:, None]).mean(0)

    def forward(self, first: torch.Tensor, second: torch.Tensor, drawn: list) -> torch.Tensor:
        a, b = self.encode(first, drawn), self.encode(second, drawn)
        return self.seq_classifer.mlpblock(torch.cat([a, b, a * b, a - b]))


def main() -> None:
    torch.manual_seed(20)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    os.makedirs(folder, exist_ok=True)
    # As saved from a GPU: every storage is tagged cuda:0.
    torch.serialization.register_package(0, lambda storage: "cuda:0", lambda storage, location: None)
    model = Pair(SMALL).eval()
    torch.save({"model_state_dict": model.state_dict()}, os.path.join(folder, "pair_sbm.model"))
    with open(os.path.join(folder, "pair_sbm.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(SMALL, indent=2) + "\n")
    model.double()
    expected = []
    for lengths in ((16, 16), (16, 5), (1, 9)):
        sequences = []
        for n in lengths:
            ids = torch.randint(1, SMALL["vocab_size"], (n,))
            ids[n // 2] = 0 if n > 4 else ids[n // 2]  # a pad inside
            sequences.append(ids)
        drawn = []
        with torch.no_grad():
            padded = [nn.functional.pad(ids, (0, SMALL["max_seq_len"] - len(ids))) for ids in sequences]
            logits = model(*padded, drawn)
        layers, counts = [], []
        for i, (p, edges) in enumerate(drawn):
            ids = sequences[i // SMALL["num_layers"]]
            n, valid = len(ids), ids != 0
            pairs = valid[:, None] & valid
            kept = (edges[:, :n, :n] > 0) & pairs
            layers.append({"heads": [_rows(head) for head in kept]})
            counts.append((p[:, :n, :n] * pairs).sum((1, 2)).tolist())
        first, second = (ids.tolist() for ids in sequences)
        case = {"token_ids": first, "second": second, "graph": {"layers": layers}}
        expected.append({**case, "logits": logits.tolist(), "expected_edges": counts})
    with open(os.path.join(folder, "pair_sbm.expected.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in expected) + "\n]\n")


def _rows(edges: torch.Tensor) -> dict:
    offsets = [0] + edges.sum(1).cumsum(0).tolist()
    return {"row_offsets": offsets, "keys": edges.nonzero()[:, 1].tolist()}


if __name__ == "__main__":
    main()
