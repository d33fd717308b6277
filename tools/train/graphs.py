"""Recipe `graphs`: what share of a graph's edges joins nodes of different colours.

The nodes, 24 to 64, lie on a square and are joined to their nearest neighbours; each has one of three colours and takes
over the colour of a random neighbour for a random while, so that graphs of the same colours are mixed more or less. The
model sees the colour and the degree of every node, and for every pair of nodes the length of the shortest path between
them, as a learned bias (`pairwise_bias`). Attention is unbiased SSA: every node attends to the same 24 random nodes.

    python tools/train/graphs.py                            trains, evaluates, exports
    python tools/train/graphs.py --write-examples FILE      held-out examples (needs NumPy and safetensors only)
"""
import argparse
import datetime
import time

import numpy as np

import export

LEAST, MOST = 24, 64    # nodes
COLOURS, BUCKETS = 3, 8
HELD_OUT = 30_000       # seed of the test set
CONFIG = {
    "task": "regression", "description": "The share of a graph's edges that joins nodes of different colours",
    "feature_size": COLOURS + 1, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": MOST, "position_embedding": "none",
    "pairwise_bias": {"kind": "buckets", "num_buckets": BUCKETS}, "pooling": {"kind": "mean", "divisor": "valid"},
    "num_labels": 1, "attention": {"kind": "ssa", "bias": "none", "keep": 24},
}


def graph(rng):
    """-> features [nodes, COLOURS + 1], buckets [nodes, nodes]: the distance, at most BUCKETS - 1, which also stands for
    nodes that are not joined at all; the target"""
    nodes = int(rng.integers(LEAST, MOST + 1))
    place = rng.uniform(size=(nodes, 2))
    away = np.square(place[:, None] - place).sum(-1)
    joined = away <= np.partition(away, 3, axis=1)[:, 3:4]    # the three nearest, oneself apart
    joined = (joined | joined.T) & ~np.eye(nodes, dtype=bool)
    colours = rng.choice(COLOURS, nodes, p=rng.dirichlet(np.full(COLOURS, 4.0)))
    neighbours = [np.flatnonzero(row) for row in joined]
    for node in rng.integers(0, nodes, int(rng.uniform(0, 5) * nodes)):
        colours[node] = colours[rng.choice(neighbours[node])]

    distance = np.full((nodes, nodes), BUCKETS - 1, np.uint8)
    reached = np.eye(nodes, dtype=bool)
    distance[reached] = 0
    for step in range(1, BUCKETS - 1):
        further = (reached @ joined) & ~reached
        distance[further] = step
        reached |= further
    features = np.concatenate([np.eye(COLOURS)[colours], joined.sum(1, keepdims=True) / 4 - 1], 1)
    return features.astype(np.float32), distance, float((colours[:, None] != colours)[joined].mean())


def batch(rng, count):
    """-> features [count, MOST, COLOURS + 1], buckets [count, MOST, MOST], valid [count, MOST], targets [count, 1]"""
    features, buckets = np.zeros((count, MOST, COLOURS + 1), np.float32), np.zeros((count, MOST, MOST), np.int64)
    valid, targets = np.zeros((count, MOST), bool), np.zeros((count, 1), np.float32)
    for i in range(count):
        f, b, targets[i] = graph(rng)
        features[i, :len(f)], buckets[i, :len(f), :len(f)], valid[i, :len(f)] = f, b, True
    return features, buckets, valid, targets


def train(args):
    import torch
    from edgewise_torch import EdgewiseTransformer, Pass
    from muon import Optimizers, rise_and_fall

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    model = EdgewiseTransformer(CONFIG)
    with torch.no_grad():   # from a head that sees neighbours to one that sees all
        slopes = torch.tensor([4.0, 2.0, 0.5, 0.0])
        model.embeddings["pairwise"].weight.copy_(-slopes[:, None] * torch.arange(BUCKETS))
    optimizers = Optimizers(model)
    start = time.time()
    pool = [torch.from_numpy(a) for a in batch(rng, args.graphs)]
    print(f"{args.graphs} graphs in {time.time() - start:.0f} s", flush=True)
    for step in range(args.steps):
        rows = torch.randint(0, args.graphs, (args.batch,))
        features, buckets, valid, targets = (a[rows] for a in pool)
        error = model(features, Pass(), valid, buckets) - targets
        error.abs().mean().backward()
        optimizers.step(rise_and_fall(step, args.steps))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} error {error.abs().mean().item():.4f} {time.time() - start:.0f} s", flush=True)
    minutes = (time.time() - start) / 60

    model.eval()
    features, buckets, valid, targets = (torch.from_numpy(a) for a in batch(np.random.default_rng(HELD_OUT), args.test))

    @torch.no_grad()
    def error(how, samples=1):
        mean = sum(model(features, how, valid, buckets) for _ in range(samples)) / samples
        return (mean - targets).abs().mean().item()

    result = {"name": "graphs", "date": datetime.date.today().isoformat(), "command": "python tools/train/graphs.py",
              "seed": args.seed, "steps": args.steps, "parameters": sum(p.numel() for p in model.parameters()),
              "test_inputs": args.test, "baseline_error_mean": (targets - pool[3].mean()).abs().mean().item(),
              "error_dense": error(Pass(dense=True)),
              "error_samples": {k: error(Pass(), k) for k in (1, 2, 4, 8, 16)}, "training_minutes": minutes}
    export.write(model, CONFIG, export.entry("graphs"))
    export.write_result("graphs", result)
    print(result)


def examples(count, values):
    rng = np.random.default_rng(HELD_OUT)
    for features, buckets, target in (graph(rng) for _ in range(count)):
        yield {"features": features.tolist(), "bias_buckets": buckets.tolist(), **({"value": target} if values else {})}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--inputs-only", action="store_true", help="examples without their values")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--graphs", type=int, default=8_000, help="different ones in training")
    parser.add_argument("--test", type=int, default=1000)
    args = parser.parse_args()
    if args.write_examples:
        export.write_examples(args.write_examples, examples(args.count, not args.inputs_only))
    else:
        train(args)


if __name__ == "__main__":
    main()
