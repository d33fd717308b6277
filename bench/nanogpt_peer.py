"""Generation as nanoGPT does it, in PyTorch on the CPU: the peer of generate_bench.

    python3 bench/nanogpt_peer.py --threads 2 --tokens 255 --repeats 3

The model of nanoGPT's shakespeare_char (6 layers, 6 heads, 384, context 256, 65 characters, no biases) with random
weights, batch 1. As in nanoGPT's generate(), every new token runs the whole text so far: it keeps no cache. Prints the
seconds of each run as a JSON list.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 6, 6, 384, 256, 65


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, bias=False)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ln_2 = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x[:, [-1], :]) @ self.wte.weight.T  # the last position only, as nanoGPT does

    @torch.no_grad()
    def generate(self, ids, count, temperature=0.8, top_k=200):
        for _ in range(count):
            logits = self(ids[:, -CONTEXT:])[:, -1, :] / temperature
            least = torch.topk(logits, min(top_k, VOCABULARY)).values[:, [-1]]
            logits[logits < least] = -float("inf")
            chosen = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            ids = torch.cat((ids, chosen), dim=1)
        return ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=CONTEXT - 1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    model = Gpt().eval()
    prompt = torch.zeros((1, 1), dtype=torch.long)
    model.generate(prompt, 16)  # warm up
    seconds = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        model.generate(prompt, args.tokens)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
