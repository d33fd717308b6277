"""The SBM-Transformer in PyTorch, for training: the twin of the model that docs/model-format.md describes.

Parameters carry the names of the exported tensors, so `state_dict()` is the model file. Attention runs the dense
Bernoulli path: all pairs are formed and an edge mask is drawn, which is affordable at training lengths.

Shapes in this file: B inputs, n positions, D width, h heads, d head width, k clusters, L layers, C labels.
"""
import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


def uniform(shape):
    """Uniform numbers in (0, 1), 16 bits each: four per draw of the generator, as drawing dominates the cost."""
    count = math.prod(shape)
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-2**63, None)
    return words.view(torch.int16)[:count].view(shape).float().add_(32768.5).mul_(1 / 65536)


class SampledAttention(torch.autograd.Function):
    """softmax over drawn edges, times v, with a straight-through gradient for the edge probabilities.

    The gradient of the output with respect to the log-score of edge (i, j) is
    g_ij = A_ij (dA_ij - sum_j A_ij dA_ij), and it is also the gradient with respect to a mask entry of value 1.
    The straight-through estimator hands hardtanh(mask * gradient of the mask) = clamp(g, -1, 1) to p.
    """

    @staticmethod
    def forward(ctx, q, k, v, p, mask):
        """q, k, v [B, h, n, d]; p [B, h, n, n] or None; mask [B, h, n, n] bool -> [B, h, n, d]."""
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        scores.masked_fill_(~mask, -math.inf)
        top = scores.amax(-1, keepdim=True).clamp_(min=-1e30)
        weights = scores.sub_(top).exp_()
        weights /= weights.sum(-1, keepdim=True).clamp_(min=1e-30)   # a row without edges stays zero
        out = weights @ v
        ctx.save_for_backward(q, k, v, weights, out)
        ctx.wants_p = p is not None
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights, out = ctx.saved_tensors
        g = grad @ v.transpose(-1, -2)
        g -= (grad * out).sum(-1, keepdim=True)
        g *= weights
        scale = q.shape[-1] ** -0.5
        dq, dk = (g @ k) * scale, (g.transpose(-1, -2) @ q) * scale
        dv = weights.transpose(-1, -2) @ grad
        return dq, dk, dv, g.clamp_(-1, 1) if ctx.wants_p else None, None


@dataclass
class Pass:
    """How a forward attends, and what it measured."""
    dense: bool = False              # all valid pairs instead of drawn edges
    keep: object = 1.0               # each drawn edge survives with this probability: a number or [B]
    cap: object = None               # [B] edges allowed over all layers and heads, shared as the server shares them
    shares: object = None            # L numbers for `cap`
    measure: bool = False            # fill `edges` and `expected`
    edges: list = field(default_factory=list)      # per layer [B]: drawn edges over all heads
    expected: list = field(default_factory=list)   # per layer [B]: sum of min(p + exploration, 1) over valid pairs
    pairs: object = None             # [B]: valid pairs over all layers and heads
    density: list = field(default_factory=list)    # per layer [B]: differentiable mean of p over valid pairs
    doubt: list = field(default_factory=list)      # per layer [B]: differentiable mean of p (1 - p), when `doubtful`
    doubtful: bool = False


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width, self.h = config["hidden_size"], config["num_attention_heads"]
        self.d = config.get("head_dim", width // self.h)
        self.layer, self.layers = layer, config["num_hidden_layers"]
        kind = config["attention"]
        kind = kind[layer] if isinstance(kind, list) else kind
        self.sbm = kind["kind"] == "sbm"
        self.query = nn.Linear(width, self.h * self.d)
        self.key = nn.Linear(width, self.h * self.d)
        self.value = nn.Linear(width, self.h * self.d)
        self.output = nn.Linear(self.h * self.d, width)
        if self.sbm:
            assert kind["law"] == "bernoulli" and not kind.get("self_loops") and not kind.get("local_window")
            self.exploration = kind.get("exploration", 0.0)
            self.clusters = nn.Parameter(torch.empty(self.h, kind["num_clusters"], self.d))
            nn.init.normal_(self.clusters, std=(2 / (kind["num_clusters"] * self.d)) ** 0.5)
            self.membership = nn.ModuleList([nn.Linear(self.d, self.d), nn.Linear(self.d, self.d)])

    def split(self, x):
        """[B, n, h·d] -> [B, h, n, d]"""
        return x.view(*x.shape[:2], self.h, self.d).transpose(1, 2)

    def memberships(self, z):
        """[B, h, n, d] -> [B, h, n, k]"""
        first, second = self.membership
        return torch.sigmoid(second(F.relu(first(z))) @ self.clusters.transpose(-1, -2))

    def block_matrix(self):
        """[h, k, k], summing to 1 per head."""
        logits = self.clusters @ self.clusters.transpose(-1, -2)
        return logits.flatten(1).softmax(-1).view_as(logits)

    def allowance(self, p, how):
        """Survival probability [B, 1, 1, 1] that meets this layer's part of `how.cap` in the mean."""
        spent = sum(how.edges) if how.edges else torch.zeros_like(how.cap)
        share = how.shares[self.layer] / sum(how.shares[self.layer:])
        allowed = ((how.cap - spent).clamp(min=0) * share).floor()
        return (allowed / p.sum((1, 2, 3)).clamp(min=1e-9)).clamp(max=1).view(-1, 1, 1, 1)

    def forward(self, x, valid, how):
        """x [B, n, D], valid [B, n] bool -> [B, n, D]; pads are neither queries nor keys."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        both = valid[:, None, :, None] & valid[:, None, None, :]
        if not self.sbm or how.dense:
            out = SampledAttention.apply(q, k, v, None, both.expand(-1, self.h, -1, -1))
            return self.output(out.transpose(1, 2).flatten(2))

        rows = self.memberships(q) * valid[:, None, :, None]
        columns = self.memberships(k) * valid[:, None, :, None]
        left = rows @ self.block_matrix()
        count = valid.sum(1)
        if torch.is_grad_enabled():
            total = (left.sum(2) * columns.sum(2)).sum((1, 2))
            how.density.append(total / (self.h * count * count))
        p = left @ columns.transpose(-1, -2)
        if how.doubtful:
            how.doubt.append((p * (1 - p)).sum((1, 2, 3)) / (self.h * count * count))
        with torch.no_grad():
            chance = ((p + self.exploration) if self.exploration else p).clamp(max=1) * both
            keep = how.keep.view(-1, 1, 1, 1) if torch.is_tensor(how.keep) else how.keep
            if how.cap is not None:
                keep = self.allowance(chance, how)
            mask = uniform(p.shape) < (chance if isinstance(keep, float) and keep == 1.0 else chance * keep)
            if how.measure or how.cap is not None:
                how.edges.append(mask.sum((1, 2, 3)).double())
                how.expected.append(chance.double().sum((1, 2, 3)))
        out = SampledAttention.apply(q, k, v, p, mask)
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

    def forward(self, x, valid, how, dropout):
        x = x + F.dropout(self.attention(self.attention_norm(x), valid, how), dropout, self.training)
        return x + F.dropout(self.mlp["down"](self.act(self.mlp["up"](self.mlp_norm(x)))), dropout, self.training)


class SbmTransformer(nn.Module):
    """`config` is the content of config.json. Pre-norm, pads by id, classification tasks."""

    def __init__(self, config, dropout=0.0):
        super().__init__()
        assert config.get("norm_position", "pre") == "pre" and not config.get("tied_layers")
        self.config, self.dropout = config, dropout
        width, length = config["hidden_size"], config["max_position_embeddings"]
        self.embeddings = nn.ModuleDict({"word": nn.Embedding(config["vocab_size"], width)})
        nn.init.normal_(self.embeddings["word"].weight, std=0.5)
        self.positions = config.get("position_embedding", "learned")
        assert self.positions in ("learned", "none")
        if self.positions == "learned":
            self.embeddings["position"] = nn.Embedding(length, width)
            nn.init.normal_(self.embeddings["position"].weight, std=0.1)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.final_norm = nn.LayerNorm(width, config.get("layer_norm_eps", 1e-5))
        hidden, labels = config.get("classifier_hidden_size", 0), config["num_labels"]
        self.classifier = nn.ModuleDict({"output": nn.Linear(hidden or width, labels)})
        if hidden:
            self.classifier["hidden"] = nn.Linear(width, hidden)

    def encode(self, ids, how, shift=None):
        """ids [B, n] -> x [B, n, D] after the final norm, valid [B, n]. `shift` [B, n, D] moves the embeddings."""
        config = self.config
        if config.get("pooling", {}).get("kind") == "cls":
            first = torch.full_like(ids[:, :1], config["cls_token_id"])
            ids = torch.cat([first, ids], 1)[:, :config["max_position_embeddings"]]
        valid = ids != config.get("pad_token_id", 0)
        x = self.embeddings["word"](ids)
        if self.positions == "learned":
            x = x + self.embeddings["position"].weight[:ids.shape[1]]
        if shift is not None:
            x = x + shift
        x = F.dropout(x, self.dropout, self.training)
        how.pairs = len(self.layers) * config["num_attention_heads"] * valid.sum(1).double() ** 2
        for layer in self.layers:
            x = layer(x, valid, how, self.dropout)
        return self.final_norm(x), valid

    def classify(self, x):
        """[..., D] -> [..., C]"""
        if "hidden" in self.classifier:
            x = F.relu(self.classifier["hidden"](x))
        return self.classifier["output"](x)

    def forward(self, ids, how=None, shift=None):
        """ids [B, n] -> logits [B, C], or [B, n, C] for token-classification."""
        x, valid = self.encode(ids, how or Pass(), shift)
        if self.config["task"] != "token-classification":
            pooling = self.config["pooling"]
            if pooling["kind"] == "cls":
                x = x[:, 0]
            else:
                count = valid.sum(1, keepdim=True) if pooling["divisor"] == "valid" \
                    else self.config["max_position_embeddings"]
                x = (x * valid[..., None]).sum(1) / count
        return self.classify(x)
