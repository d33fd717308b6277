#!/usr/bin/env python3
"""Makes data/nanogpt*.pt: checkpoints by the real torch.save, and what a PyTorch forward answers. Run by hand.

Needs PyTorch; the tests do not. The module below has the parameter names and the forward of nanoGPT's GPT. nanogpt and
nanogpt_bias are trained for a few steps, so that the checkpoint holds an optimizer with its own tensors, as a real one
does; they have the logits of random tokens. nanogpt_verse and nanogpt_verse_bias know a verse, so that what they write
is text and its tokens are well apart; they have greedy continuations and the likelihoods of a text, both far beyond the
context.
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
VERSE = "the sun arose: who has it been,\nbig stones and birds, the road seen.\nhe ate a wäte, had nothing on!\n"
PROMPTS = ("t", "who ", "\nbig stones and ", "sun, no wä! birds at the road he ate: no")
CONTINUED = 40
STEPS = 400


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


def learn_verse(model: nn.Module, size: int) -> None:
    """Until the model knows most of what comes next in the verse, so that few of its choices are close."""
    verse = torch.tensor([CHARACTERS.index(character) for character in VERSE * 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(8):
            at = int(torch.randint(0, len(VERSE), ()))
            ids = verse[at:at + size + 1]
            nn.functional.cross_entropy(model(ids[:-1]), ids[1:]).div(8).backward()
        optimizer.step()


def continue_greedily(model: nn.Module, size: int, prompt: list) -> dict:
    """As nanoGPT's generate with the most probable token; `margins` are from the first logit to the second."""
    ids, margins, chosen = list(prompt), [], []
    with torch.no_grad():
        for _ in range(CONTINUED):
            logits = model(torch.tensor(ids[-size:]))[-1]
            best = logits.topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            chosen.append(float(logits.log_softmax(-1)[best.indices[0]]))
            ids.append(int(best.indices[0]))
    tokens = ids[len(prompt):]
    return {"prompt": prompt, "tokens": tokens, "margins": rounded(margins), "log_probabilities": rounded(chosen)}


def score(model: nn.Module, size: int, ids: list, stride: int) -> dict:
    """ln p of every token but the first, each from the first window of `size` tokens, `stride` apart, that has it. The
    last window ends with the text and is as long as the others."""
    chosen = []
    with torch.no_grad():
        for begin in range(0, len(ids) - size + stride, stride):
            begin = min(begin, len(ids) - size)
            window = torch.tensor(ids[begin:begin + size])
            logs = model(window)[:-1].log_softmax(-1).gather(1, window[1:, None])[:, 0].tolist()
            chosen += logs[len(chosen) - begin:]
    return {"token_ids": ids, "stride": stride, "log_probabilities": rounded(chosen)}


def rounded(values: list) -> list:
    return [float(f"{value:.10g}") for value in values]


def make_verse(name: str, args: dict, tied: bool, buffer: bool, prefix: str) -> None:
    model = Gpt(args, tied, buffer)
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(0.2)  # as small as tied word embeddings are, which begin as a linear layer
    learn_verse(model, args["block_size"])
    checkpoint = {
        "model": {prefix + key: value for key, value in model.state_dict().items()},
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
        "model_args": args,
        "iter_num": STEPS,
        "best_val_loss": torch.tensor(0.5),
        "config": {"out_dir": "out"},
    }
    torch.save(checkpoint, os.path.join(FOLDER, f"{name}.pt"))
    size, expected = args["block_size"], {}
    text = [CHARACTERS.index(character) for character in PROMPTS[-1] + VERSE]
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        expected[str(dtype).removeprefix("torch.")] = {
            "continuations": [continue_greedily(model, size, [CHARACTERS.index(c) for c in p]) for p in PROMPTS],
            "texts": [score(model, size, text[:n], stride) for n, stride in ((size, 1), (60, 1), (73, 8), (73, 13))],
        }
    lines = [f'"{dtype}":{{\n' + ",\n".join(f'"{kind}":[\n' + ",\n".join(
        json.dumps(case, separators=(",", ":")) for case in cases) + "\n]" for kind, cases in kinds.items()) + "\n}"
        for dtype, kinds in expected.items()]
    with open(os.path.join(FOLDER, f"{name}.expected.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


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
    torch.set_num_threads(1)  # small products are slower with more
    args.update(n_embd=16, block_size=16)
    make_verse("nanogpt_verse", {**args, "dropout": 0.2}, tied=True, buffer=False, prefix="_orig_mod.")
    make_verse("nanogpt_verse_bias", {**args, "bias": True, "dropout": 0.0}, tied=False, buffer=True, prefix="")


if __name__ == "__main__":
    sys.exit(main())
