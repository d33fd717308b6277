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

    With `reach`, pairs in `allowed` that were not drawn get a gradient too: what the edge would have changed, its weight
    being e / (e + sum of e over the drawn edges) = sigmoid(score - logsumexp). Edges that a row lacks can then be learned.
    """

    @staticmethod
    def forward(ctx, q, k, v, p, mask, reach, allowed):
        """q, k, v [B, h, n, d]; p [B, h, n, n] or None; mask [B, h, n, n] bool; allowed [B, 1, n, n] -> [B, h, n, d]."""
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        scores.masked_fill_(~mask, -math.inf)
        top = scores.amax(-1, keepdim=True).clamp_(min=-1e30)
        weights = scores.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True).clamp_(min=1e-30)
        weights /= total                                    # a row without edges stays zero
        out = weights @ v
        ctx.reach, ctx.wants_p = reach, p is not None
        ctx.save_for_backward(q, k, v, weights, out, *((top + total.log(), mask, allowed) if reach else ()))
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights, out = ctx.saved_tensors[:5]
        scale = q.shape[-1] ** -0.5
        g = grad @ v.transpose(-1, -2)
        g -= (grad * out).sum(-1, keepdim=True)
        dp = None
        if ctx.reach and ctx.wants_p:
            logsum, mask, allowed = ctx.saved_tensors[5:]
            would = ((q * scale) @ k.transpose(-1, -2)).sub_(logsum).sigmoid_()
            dp = would.mul_(g).masked_fill_(mask | ~allowed, 0)
        g *= weights
        dq, dk = (g @ k) * scale, (g.transpose(-1, -2) @ q) * scale
        dv = weights.transpose(-1, -2) @ grad
        if ctx.wants_p:
            dp = (g if dp is None else dp.add_(g)).clamp_(-1, 1)
        return dq, dk, dv, dp, None, None, None


@dataclass
class Pass:
    """How a forward attends, and what it measured."""
    dense: bool = False              # all valid pairs instead of drawn edges
    reach: bool = False              # gradients for edges that were not drawn, see SampledAttention
    keep: object = 1.0               # each drawn edge survives with this probability: a number, [B], or a list of L of
                                     # these, where None leaves a layer without edges
    fixed: bool = False              # no gradients for edge probabilities: memberships and clusters stay as they are
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

    def chances(self, p, both):
        """Probabilities p [B, h, m, n] -> those of the draw."""
        return ((p + self.exploration) if self.exploration else p).clamp(max=1) * both

    def allowance(self, expected, how):
        """Survival probability [B] that meets this layer's part of `how.cap` in the mean."""
        spent = sum(how.edges) if how.edges else torch.zeros_like(how.cap)
        share = how.shares[self.layer] / sum(how.shares[self.layer:])
        return (((how.cap - spent).clamp(min=0) * share).floor() / expected.clamp(min=1e-9)).clamp(max=1).float()

    def survive(self, chance, keep):
        """chance [B, h, m, n], keep a number or [B] -> the mask that is drawn, bool."""
        if torch.is_tensor(keep):
            chance = chance * keep.view(-1, 1, 1, 1)
        return uniform(chance.shape) < (chance * keep if isinstance(keep, float) and keep < 1 else chance)

    def attend_blocks(self, q, k, v, left, columns, valid, how):
        """The forward without gradients, a block of rows at a time so that it stays in the cache -> [B, h, n, d]."""
        n = q.shape[2]
        size = max(1, 2**18 // (n * q.shape[0] * self.h))
        out, edges, keep = torch.empty_like(q), 0, how.keep
        keep = keep[self.layer] if isinstance(keep, list) else keep
        bounds = [slice(start, start + size) for start in range(0, n, size)]
        both = lambda rows: valid[:, None, rows, None] & valid[:, None, None, :]
        chance = lambda rows: self.chances(left[:, :, rows] @ columns.transpose(-1, -2), both(rows))
        if how.measure or how.cap is not None:
            expected = sum(chance(rows).sum((1, 2, 3)).double() for rows in bounds)
            if how.cap is not None:
                keep = self.allowance(expected, how)
            how.expected.append(expected)
        for rows in bounds:
            mask = both(rows).expand(-1, self.h, -1, -1) if how.dense else self.survive(chance(rows), keep)
            if how.measure or how.cap is not None:
                edges = edges + mask.sum((1, 2, 3)).double()
            out[:, :, rows] = SampledAttention.apply(q[:, :, rows], k, v, None, mask, False, None)
        if how.measure or how.cap is not None:
            how.edges.append(edges)
        return out

    def forward(self, x, valid, how):
        """x [B, n, D], valid [B, n] bool -> [B, n, D]; pads are neither queries nor keys."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        both = valid[:, None, :, None] & valid[:, None, None, :]
        if torch.is_grad_enabled() and (how.dense or not self.sbm):
            out = SampledAttention.apply(q, k, v, None, both.expand(-1, self.h, -1, -1), False, None)
            return self.output(out.transpose(1, 2).flatten(2))

        keep = how.keep[self.layer] if isinstance(how.keep, list) else how.keep
        if keep is None:
            return self.output(torch.zeros_like(q).transpose(1, 2).flatten(2))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not how.fixed):
            rows, columns = (self.memberships(z) * valid[:, None, :, None] for z in (q, k))
            left = rows @ self.block_matrix()
        if not torch.is_grad_enabled():
            out = self.attend_blocks(q, k, v, left, columns, valid, how)
            return self.output(out.transpose(1, 2).flatten(2))

        pairs = self.h * valid.sum(1) ** 2
        how.density.append((left.sum(2) * columns.sum(2)).sum((1, 2)) / pairs)
        p = left @ columns.transpose(-1, -2)
        if how.doubtful:
            how.doubt.append((p * (1 - p)).sum((1, 2, 3)) / pairs)
        with torch.no_grad():
            mask = self.survive(self.chances(p, both), keep)
            if how.measure:
                how.edges.append(mask.sum((1, 2, 3)).double())
        if how.fixed:       # the same and faster; rows without edges are zero from PyTorch 2.5 on
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            out = SampledAttention.apply(q, k, v, p, mask, how.reach, both)
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


def widen(model, times, noise):
    """A model with every head `times` times, which answers the same over all pairs; `noise` tells the copies apart.

    Each copy draws edges of its own: what one has lost the other may have. `noise` is relative to the spread of a matrix
    of the attention; memberships and clusters are copied exactly, and so is what a copy draws in the mean.
    """
    heads = model.config["num_attention_heads"]
    wide = SbmTransformer({**model.config, "num_attention_heads": heads * times}, model.dropout)
    tensors = {}
    for name, tensor in model.state_dict().items():
        part = name.rpartition("attention.")[2]
        if part.split(".")[0] in ("query", "key", "value", "clusters"):
            tensor = torch.cat([tensor] * times)
        elif part == "output.weight":
            tensor = torch.cat([tensor / times] * times, 1)
        if "attention." in name and tensor.dim() == 2 and "membership" not in part:
            tensor = tensor + noise * tensor.std() * torch.randn_like(tensor)
        tensors[name] = tensor
    wide.load_state_dict(tensors)
    return wide
