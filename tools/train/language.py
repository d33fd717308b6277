"""Training and scoring of causal language models."""
import time

import torch
from torch.nn import functional as F

from edgewise_torch import Pass


@torch.no_grad()
def losses(model, ids, how, samples=(1,), batch=64):
    """ids [length] -> {k: loss of the mean of the probabilities over k draws} for every k of `samples`.

    A loss is the mean, in nats, over the tokens but the first. Windows of N tokens overlap by half, so that a token has
    N/2 others before it at least, the first window apart: what the server does with texts beyond its context.
    """
    model.eval()
    n = model.config["max_position_embeddings"]
    starts = list(range(0, max(1, len(ids) - n + n // 2), n // 2))
    sums, count = dict.fromkeys(samples, 0.0), 0
    for group in (starts[i:i + batch] for i in range(0, len(starts), batch)):
        rows = torch.stack([F.pad(ids[s:s + n], (0, n - len(ids[s:s + n]))) for s in group])
        known = torch.stack([(torch.arange(1, n) + s < len(ids)) & (torch.arange(1, n) >= (n // 2 if s else 0))
                             for s in group])
        mean = 0
        for k in range(1, max(samples) + 1):
            chosen = F.log_softmax(model(rows, how)[:, :-1], -1).gather(2, rows[:, 1:, None])[..., 0]
            mean = mean + chosen.double().exp()
            if k in sums:
                sums[k] -= (mean / k).log()[known].sum().item()
        count += int(known.sum())
    model.train()
    return {k: s / count for k, s in sums.items()}


def train(model, ids, held, steps, how, factor, optimizers, batch, seed, label):
    """`steps` steps on `batch` windows of `ids` each; factor(step) multiplies the rates."""
    generator = torch.Generator().manual_seed(seed)
    n, start, seen = model.config["max_position_embeddings"], time.time(), 0.0
    model.train()
    for step in range(steps):
        places = torch.randint(0, len(ids) - n, (batch, 1), generator=generator) + torch.arange(n + 1)
        rows = ids[places]
        loss = F.cross_entropy(model(rows[:, :-1], how).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizers.step(factor(step))
        seen = 0.95 * seen + 0.05 * loss.item()
        if (step + 1) % 100 == 0:
            spot = losses(model, held[:8192], Pass(dense=how.dense))[1]
            print(f"{label} step {step + 1} train {seen / (1 - 0.95 ** (step + 1)):.3f} held out {spot:.3f} "
                  f"{time.time() - start:.0f} s, {time.process_time():.0f} s of the processor", flush=True)
