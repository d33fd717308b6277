"""Recipe `shapes`: which of eight shapes an image of 32 x 32 pixels shows.

Shapes of random size, place, brightness and, within limits, turn, on noise of their own strength. An image is a grid of
8 x 8 patches of 4 x 4 pixels; attention is SSA on the grid, drawn at every step.

    python tools/train/shapes.py                            trains, evaluates, exports
    python tools/train/shapes.py --write-examples FILE      held-out examples (needs NumPy and safetensors only)
"""
import argparse
import datetime
import time

import numpy as np

import export

PIXELS, PATCH = 32, 4
GRID = PIXELS // PATCH
HELD_OUT = 20_000   # seed of the test set
LABELS = ("disk", "ring", "square", "frame", "triangle", "cross", "crescent", "stripes")
CONFIG = {
    "task": "sequence-classification", "description": "Names the shape in an image of 32 x 32 pixels",
    "feature_size": PATCH * PATCH, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "head_dim": 16,
    "intermediate_size": 192, "max_position_embeddings": GRID * GRID, "position_embedding": "relative",
    "pooling": {"kind": "mean", "divisor": "valid"}, "num_labels": len(LABELS),
    "id2label": {str(i): label for i, label in enumerate(LABELS)},
    "attention": {"kind": "ssa", "bias": "local", "windows": 4, "sigma": 0.25, "grid": [GRID, GRID]},
}


def inside(label, x, y):
    """The shape of size 1 around (0, 0): which of the points x, y [count, PIXELS, PIXELS] it covers."""
    away, box = np.hypot(x, y), np.maximum(abs(x), abs(y))
    return {"disk": away < 1,
            "ring": (away < 1) & (away > 0.6),
            "square": box < 0.85,
            "frame": (box < 0.85) & (box > 0.5),
            "triangle": (y > -0.6) & (y + 1.73 * abs(x) < 1.1),
            "cross": (box < 1) & (np.minimum(abs(x), abs(y)) < 0.3),
            "crescent": (away < 1) & (np.hypot(x - 0.5, y) > 0.75),
            "stripes": (box < 0.95) & (np.floor((y + 1) * 2.5) % 2 == 0)}[label]


def generate(rng, count):
    """-> patches [count, GRID * GRID, PATCH * PATCH] float32 around 0, labels [count]"""
    labels = rng.integers(0, len(LABELS), count)
    size = rng.uniform(8, 13, (count, 1, 1))
    centre = rng.uniform(-1, 1, (2, count, 1, 1)) * (PIXELS / 2 - size) + PIXELS / 2 - 0.5
    turn = rng.uniform(-0.3, 0.3, (count, 1, 1))
    y, x = np.mgrid[:PIXELS, :PIXELS]
    x, y = (x - centre[0]) / size, (y - centre[1]) / size
    x, y = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    image = np.zeros((count, PIXELS, PIXELS))
    for label, name in enumerate(LABELS):
        of = labels == label
        image[of] = inside(name, x[of], y[of])
    image *= rng.uniform(0.7, 1.0, (count, 1, 1))
    image += rng.uniform(0.05, 0.25, (count, 1, 1)) * rng.standard_normal(image.shape)
    patches = image.reshape(count, GRID, PATCH, GRID, PATCH).transpose(0, 1, 3, 2, 4)
    return patches.reshape(count, GRID * GRID, PATCH * PATCH).astype(np.float32), labels


def train(args):
    import torch
    from torch.nn import functional as F
    from edgewise_torch import EdgewiseTransformer, Pass
    from muon import Optimizers, rise_and_fall

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    model = EdgewiseTransformer(CONFIG)
    with torch.no_grad():   # a shift of (r, c) patches is one of 8 r + c positions; near patches count more at first
        shift = torch.arange(2 * GRID * GRID - 1) - (GRID * GRID - 1)
        rows = torch.round(shift / GRID)
        away = torch.hypot(rows, shift - GRID * rows)
        slopes = torch.tensor([0.0, 0.25, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0])
        relative = model.embeddings["relative"].weight
        relative.copy_(torch.randn_like(relative) - slopes[:, None] * away)
    optimizers = Optimizers(model)
    start, how = time.time(), Pass()
    for step in range(args.steps):
        patches, labels = (torch.from_numpy(a) for a in generate(rng, args.batch))
        logits = model(patches, how)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        loss.backward()
        optimizers.step(rise_and_fall(step, args.steps))
        if (step + 1) % 100 == 0:
            right = (logits.argmax(-1) == labels).float().mean().item()
            print(f"step {step + 1} loss {loss.item():.3f} right {right:.3f} {time.time() - start:.0f} s", flush=True)
    minutes = (time.time() - start) / 60

    model.eval()
    patches, labels = (torch.from_numpy(a) for a in generate(np.random.default_rng(HELD_OUT), args.test))

    @torch.no_grad()
    def accuracy(how, samples=1):
        right = 0
        for part, truth in zip(patches.split(100), labels.split(100)):
            mean = sum(model(part, how).softmax(-1) for _ in range(samples))
            right += (mean.argmax(-1) == truth).sum().item()
        return right / len(labels)

    result = {"name": "shapes", "date": datetime.date.today().isoformat(), "command": "python tools/train/shapes.py",
              "seed": args.seed, "steps": args.steps, "parameters": sum(p.numel() for p in model.parameters()),
              "test_inputs": args.test, "baseline_majority": np.bincount(labels).max() / len(labels),
              "accuracy_dense": accuracy(Pass(dense=True)),
              "accuracy_samples": {k: accuracy(Pass(), k) for k in (1, 2, 4, 8, 16)}, "training_minutes": minutes}
    export.write(model, CONFIG, export.entry("shapes"))
    export.write_result("shapes", result)
    print(result)


def examples(count):
    patches, labels = generate(np.random.default_rng(HELD_OUT), count)
    for patch, label in zip(patches, labels):
        yield {"features": [[round(float(v), 4) for v in row] for row in patch], "label": int(label)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--test", type=int, default=1000)
    args = parser.parse_args()
    if args.write_examples:
        export.write_examples(args.write_examples, examples(args.count))
    else:
        train(args)


if __name__ == "__main__":
    main()
