"""Transformers with SSA, block-sparse and dense attention in PyTorch, for training: docs/model-format.md as a module.

Parameters carry the names of the exported tensors, so `state_dict()` is the model file. Attention forms all pairs and
masks them, which is affordable at training lengths. The random numbers are PyTorch's: the law of a drawn mask is the
server's, its draws are not. `sbm_torch.py` has the models whose edges are drawn by learned memberships.

Shapes in this file: B inputs, n positions, D width, h heads, d head width, E features, C labels, V words, N the longest
input. A mask is bool and broadcasts to [B, n, n], True where query i may attend to key j.
"""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

MASKED = -1e30


def ranks(keys):
    """keys [..., n] -> the place of every entry in the sorted row, ties to the lower index."""
    return keys.argsort(dim=-1, stable=True).argsort(dim=-1)


def window_of(place, count, windows):
    """The window a with floor(a·count/windows) <= place < floor((a+1)·count/windows). Integers that broadcast."""
    return ((place + 1) * windows - 1) // count


def sigma_of(kind, layer, layers):
    sigma = kind.get("sigma", 0.0)
    if isinstance(sigma, (list, tuple)):
        first, last = sigma
        return first + (last - first) * layer / max(1, layers - 1)
    return sigma


def sources_kept(kind, length):
    """How many sources `bias: none` keeps; `length` an int or a tensor of them."""
    return kind["keep"] if "keep" in kind else -(-length // kind["windows"])


def causal_ssa(kind, sigma, n, longest):
    """One draw on a causal model -> [n, n]; the diagonal of `bias: none` may be False."""
    earlier = torch.ones(n, n, dtype=torch.bool).tril()
    if kind["bias"] == "none":
        return earlier & (torch.randperm(longest)[:n] < sources_kept(kind, longest))
    assert "grid" not in kind
    size = -(-longest // kind["windows"])
    starts = torch.arange(0, n, size)[:, None]
    place = torch.arange(longest)
    keys = place + sigma * longest * torch.randn(len(starts), longest)
    keys = keys.masked_fill(place >= (starts + size).clamp(max=longest), math.inf)
    chosen = ranks(keys)[:, :n] >= starts                   # [windows, n]: the last places of every window's draw
    return chosen[torch.arange(n) // size] & earlier


def ssa(kind, sigma, valid):
    """One draw for every input; valid [B, n] bool -> [B, n, n]. Windows and noise follow the valid tokens."""
    size, n = valid.shape
    count = valid.sum(1, keepdim=True)
    if kind["bias"] == "none":
        rank = ranks(torch.rand(size, n).masked_fill(~valid, math.inf))
        return (rank < sources_kept(kind, count))[:, None, :].expand(size, n, n)
    if "grid" in kind:
        rows, columns = kind["grid"]
        windows = min(kind["windows"], rows)
        row, column = torch.arange(rows)[:, None], torch.arange(columns)
        across = ranks(column + sigma * columns * torch.randn(size, rows, columns))
        down = ranks((row + sigma * rows * torch.randn(size, rows, columns)).transpose(1, 2)).transpose(1, 2)
        source = window_of(down.gather(2, across), rows, windows).flatten(1)
        query = window_of(row.expand(rows, columns), rows, windows).flatten()
        return query[None, :n, None] == source[:, None, :n]
    windows = count.clamp(max=kind["windows"])
    token = valid.cumsum(1) - 1                             # its number among the valid ones
    rank = ranks((token + sigma * count * torch.randn(size, n)).masked_fill(~valid, math.inf))
    return window_of(token, count, windows)[:, :, None] == window_of(rank, count, windows)[:, None, :]


def block_size(kind, length):
    size = kind["block_size"]
    if isinstance(size, dict):
        size = min(max(size["min"], math.floor(size["alpha"] * length)), size["max"])
    return size


def blocks(kind, n, longest, causal, scores=None):
    """The pairs of the attended blocks -> [n, n]."""
    size = block_size(kind, longest if causal else n)
    block = torch.arange(n) // size
    row, column = block[:, None], block[None, :]
    pattern = kind["pattern"]
    if pattern == "diagonal":
        mask = row == column
    elif pattern == "local":
        mask = (row - column).abs() <= kind.get("width", 1)
    elif pattern == "strided":
        mask = (row - column) % kind["stride"] == 0
    elif pattern == "first_and_diagonal":
        mask = (column == 0) | (row == column)
    elif pattern == "list":
        chosen = torch.zeros(-(-longest // size), -(-longest // size), dtype=torch.bool)
        for pair in kind["blocks"]:
            chosen[tuple(pair)] = True
        mask = chosen[row, column]
    else:
        mask = (torch.sigmoid(scores) >= kind["threshold"])[row, column]
    return mask.tril() if causal else mask


def alibi_slopes(heads):
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (a + 1) / power) for a in range(power)]
    return torch.tensor(slopes + [2 ** (-8 * (a + 1) / (2 * power)) for a in range(0, 2 * power, 2)][:heads - power])


@dataclass
class Pass:
    """How a forward attends."""
    dense: bool = False     # every allowed pair instead of the layers' own kinds
    own_draws: bool = True  # every input of a batch draws its own sources; False: one draw for the batch


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width, self.h = config["hidden_size"], config["num_attention_heads"]
        self.d = config.get("head_dim", width // self.h)
        self.layer, self.layers, self.longest = layer, config["num_hidden_layers"], config["max_position_embeddings"]
        self.causal = config["task"] == "causal-lm"
        kind = config["attention"]
        self.kind = kind[layer] if isinstance(kind, list) else kind
        self.dense = self.kind["kind"] == "dense" or layer < self.layers - self.kind.get("last_layers", self.layers)
        self.query, self.key = nn.Linear(width, self.h * self.d), nn.Linear(width, self.h * self.d)
        self.value, self.output = nn.Linear(width, self.h * self.d), nn.Linear(self.h * self.d, width)
        if self.kind.get("pattern") == "learned":
            count = -(-self.longest // self.kind["block_size"])
            self.block_scores = nn.Parameter(torch.zeros(count, count))

    def draw(self, valid, how):
        """The pairs of one forward, apart from pads; valid [B, n] -> a mask, or None: all that causality allows."""
        size, n = valid.shape
        if how.dense or self.dense:
            return torch.ones(n, n, dtype=torch.bool).tril() if self.causal else None
        if self.kind["kind"] == "block":
            return blocks(self.kind, n, self.longest, self.causal, getattr(self, "block_scores", None))
        sigma = sigma_of(self.kind, self.layer, self.layers)
        if not self.causal:
            return ssa(self.kind, sigma, valid if how.own_draws else valid[:1])
        if not how.own_draws or size == 1:
            return causal_ssa(self.kind, sigma, n, self.longest)
        return torch.stack([causal_ssa(self.kind, sigma, n, self.longest) for _ in range(size)])

    def split(self, x):
        """[B, n, h·d] -> [B, h, n, d]"""
        return x.view(*x.shape[:2], self.h, self.d).transpose(1, 2)

    def forward(self, x, bias, some):
        """x [B, n, D]; bias broadcasts to [B, h, n, n] and holds MASKED where there is no edge; some broadcasts to
        [B, 1, n, 1]: 0 for rows without an edge, whose output is zero -> [B, n, D]"""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        if some is not None:
            out = out * some
        return self.output(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width, eps = config["hidden_size"], config.get("layer_norm_eps", 1e-5)
        self.attention_norm = nn.LayerNorm(width, eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = nn.LayerNorm(width, eps)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, config["intermediate_size"]),
                                  "down": nn.Linear(config["intermediate_size"], width)})
        self.act = {"gelu": F.gelu, "relu": F.relu}[config.get("hidden_act", "gelu")]

    def forward(self, x, bias, some, dropout):
        x = x + F.dropout(self.attention(self.attention_norm(x), bias, some), dropout, self.training)
        return x + F.dropout(self.mlp["down"](self.act(self.mlp["up"](self.mlp_norm(x)))), dropout, self.training)


class EdgewiseTransformer(nn.Module):
    """`config` is the content of config.json. Pre-norm; tokens or rows of features; causal-lm, sequence-classification
    and regression with mean pooling over the valid tokens."""

    def __init__(self, config, dropout=0.0):
        super().__init__()
        assert config.get("norm_position", "pre") == "pre" and not config.get("tied_layers")
        self.config, self.dropout = config, dropout
        width, heads = config["hidden_size"], config["num_attention_heads"]
        if "feature_size" in config:
            self.embeddings = nn.ModuleDict({"features": nn.Linear(config["feature_size"], width)})
        else:
            self.embeddings = nn.ModuleDict({"word": nn.Embedding(config["vocab_size"], width)})
            nn.init.normal_(self.embeddings["word"].weight, std=0.05)
        self.positions = config.get("position_embedding", "learned")
        if self.positions == "learned":
            self.embeddings["position"] = nn.Embedding(config["max_position_embeddings"], width)
            nn.init.normal_(self.embeddings["position"].weight, std=0.1)
        elif self.positions == "relative":
            self.embeddings["relative"] = nn.Embedding(heads, 2 * config["max_position_embeddings"] - 1)
            nn.init.zeros_(self.embeddings["relative"].weight)
        assert self.positions in ("learned", "alibi", "relative", "none")
        if "pairwise_bias" in config:
            self.embeddings["pairwise"] = nn.Embedding(config["pairwise_bias"]["num_buckets"], heads)
            self.embeddings["pairwise"].weight = nn.Parameter(torch.zeros(heads, config["pairwise_bias"]["num_buckets"]))
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.final_norm = nn.LayerNorm(width, config.get("layer_norm_eps", 1e-5))
        if config["task"] != "causal-lm":
            self.classifier = nn.ModuleDict({"output": nn.Linear(width, config["num_labels"])})
        for layer in self.layers:                           # every layer starts as the identity
            for linear in (layer.attention.output, layer.mlp["down"]):
                nn.init.zeros_(linear.weight)
            for linear in (layer.attention.query, layer.attention.key, layer.attention.value, layer.mlp["up"]):
                nn.init.zeros_(linear.bias)

    def score_bias(self, n, buckets):
        """The bias added to the scores of all layers: [1 or B, h, n, n] or None."""
        bias, place = None, torch.arange(n)
        if self.positions == "relative":
            bias = self.embeddings["relative"].weight[:, place - place[:, None]
                                                      + self.config["max_position_embeddings"] - 1][None]
        if self.positions == "alibi":
            bias = (-alibi_slopes(self.config["num_attention_heads"])[:, None, None]
                    * (place[:, None] - place).abs())[None]
        if buckets is not None:
            bias = self.embeddings["pairwise"].weight[:, buckets].transpose(0, 1) + (0 if bias is None else bias)
        return bias

    def layer_inputs(self, valid, how, buckets=None):
        """Draws the masks of all layers -> per layer (bias, some) for Layer.forward."""
        bias, padded, result = self.score_bias(valid.shape[1], buckets), not bool(valid.all()), []
        for layer in self.layers:
            mask = layer.attention.draw(valid, how)
            if mask is not None:
                mask = mask if mask.dim() == 3 else mask[None]
            if padded:
                mask = valid[:, None, :] if mask is None else mask & valid[:, None, :]
            if mask is None:
                result.append((bias, None))
                continue
            some = mask.any(-1)[:, None, :, None]
            mask = mask[:, None]
            result.append((torch.where(mask, 0.0 if bias is None else bias, MASKED), None if some.all() else some))
        return result

    def encode(self, x, layer_inputs):
        """x [B, n, D], the embeddings -> [B, n, D] after the final norm."""
        x = F.dropout(x, self.dropout, self.training)
        for layer, (bias, some) in zip(self.layers, layer_inputs):
            x = layer(x, bias, some, self.dropout)
        return self.final_norm(x)

    def forward(self, inputs, how=None, valid=None, buckets=None):
        """inputs: ids [B, n] or features [B, n, E]; valid [B, n] bool, None: all; buckets [B, n, n] ints
        -> logits [B, n, V] (causal-lm), or [B, C]: logits or values."""
        valid = torch.ones(inputs.shape[:2], dtype=torch.bool) if valid is None else valid
        x = self.embeddings["features" if "features" in self.embeddings else "word"](inputs)
        if self.positions == "learned":
            x = x + self.embeddings["position"].weight[:x.shape[1]]
        x = self.encode(x, self.layer_inputs(valid, how or Pass(), buckets))
        if self.config["task"] == "causal-lm":
            return F.linear(x, self.embeddings["word"].weight)
        return self.classifier["output"]((x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True))
