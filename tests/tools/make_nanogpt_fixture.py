#!/usr/bin/env python3
"""Makes data/nanogpt*.pt: checkpoints by the real torch.save, and the logits of a PyTorch forward. Run by hand.

Needs PyTorch; the tests do not. The module below has the parameter names and the forward of nanoGPT's GPT. It is
trained for a few steps, so that the checkpoint holds an optimizer with its own tensors, as a real one does.
"""

import json
import math
import os
import pickle
import sys

import torch
from torch import nn

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
CHARACTERS = "\n !,.:abcdefghinorstuwä"


class Norm(nn.Module):
    """LayerNorm with or without a bias."""

    def __init__(self, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, c: dict, buffer: bool):
        super().__init__()
        self.c_attn = nn.Linear(c["n_embd"], 3 * c["n_embd"], bias=c["bias"])
        self.c_proj = nn.Linear(c["n_embd"], c["n_embd"], bias=c["bias"])
        self.heads, size = c["n_head"], c["block_size"]
        mask = torch.ones(size, size).tril().view(1, 1, size, size)
        self.register_buffer("bias", mask, persistent=buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, width = x.shape
        q, k, v = (t.view(n, self.heads, -1).transpose(0, 1) for t in self.c_attn(x).chunk(3, dim=-1))
        scores = q @ k.transpose(1, 2) / math.sqrt(width // self.heads)
        weights = scores.masked_fill(self.bias[0, :, :n, :n] == 0, -math.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(0, 1).reshape(n, width))


class Block(nn.Module):
    def __init__(self, c: dict, buffer: bool):
        super().__init__()
        width = c["n_embd"]
        self.ln_1, self.attn, self.ln_2 = Norm(width, c["bias"]), Attention(c, buffer), Norm(width, c["bias"])
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width, c["bias"]), "c_proj": nn.Linear(4 * width, width, c["bias"])}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, c: dict, tied: bool, buffer: bool):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(c["vocab_size"], c["n_embd"]),
            "wpe": nn.Embedding(c["block_size"], c["n_embd"]),
            "h": nn.ModuleList([Block(c, buffer) for _ in range(c["n_layer"])]),
            "ln_f": Norm(c["n_embd"], c["bias"]),
        })
        self.lm_head = nn.Linear(c["n_embd"], c["vocab_size"], bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(len(ids)))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def make(name: str, args: dict, tied: bool, buffer: bool, prefix: str) -> None:
    """A checkpoint of a model that was trained for four steps on random tokens, and what it answers in float64."""
    model = Gpt(args, tied, buffer)
    with torch.no_grad():  # larger than nanoGPT starts, so that every part of the model matters
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    for _ in range(4):
        ids = torch.randint(0, args["vocab_size"], (args["block_size"],))
        loss = nn.functional.cross_entropy(model(ids)[:-1], ids[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    checkpoint = {
        "model": {prefix + key: value for key, value in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "model_args": args,
        "iter_num": 4,
        "best_val_loss": loss.detach(),
        "config": {"out_dir": "out", "eval_interval": 250, "learning_rate": 1e-3, "always_save_checkpoint": False},
    }
    torch.save(checkpoint, os.path.join(FOLDER, f"{name}.pt"))
    model.double()
    expected = []
    for n in (args["block_size"], 7, 1):
        ids = torch.randint(0, args["vocab_size"], (n,))
        with torch.no_grad():
            logits = model(ids)
        chosen = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        case = {"token_ids": ids.tolist(), "logits": logits[-1].tolist(), "log_probabilities": chosen.tolist()}
        expected.append(case)
    with open(os.path.join(FOLDER, f"{name}.expected.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in expected) + "\n]\n")


def main() -> None:
    torch.manual_seed(21)
    # As saved from a GPU: every storage is tagged cuda:0.
    torch.serialization.register_package(0, lambda storage: "cuda:0", lambda storage, location: None)
    args = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 12, "bias": False, "vocab_size": len(CHARACTERS)}
    make("nanogpt", {**args, "dropout": 0.2}, tied=True, buffer=False, prefix="_orig_mod.")
    make("nanogpt_bias", {**args, "bias": True, "dropout": 0.0}, tied=False, buffer=True, prefix="")
    stoi = {character: index for index, character in enumerate(CHARACTERS)}
    meta = {"vocab_size": len(stoi), "itos": {index: c for c, index in stoi.items()}, "stoi": stoi}
    with open(os.path.join(FOLDER, "nanogpt.meta.pkl"), "wb") as file:
        pickle.dump(meta, file)


if __name__ == "__main__":
    sys.exit(main())
