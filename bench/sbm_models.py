"""The part of bench/models.py that times SBM models: sparse, capped and dense, by length and density.

Memberships are shifted until a model's density is the one asked for. Printed are medians over rounds of ratios.
"""

import json
import math
import pathlib
import shutil
import statistics
import subprocess

import numpy as np
from random_models import ROOT, Weights, write_model

from evaluation.server import Server  # random_models made tools importable

LAYERS, HEADS, HEAD_DIM, INNER, CLUSTERS, WORDS = 4, 8, 64, 2048, 64, 1000
DENSITIES = [0.025, 0.10, 0.21]
LENGTHS = [1024, 4096]
CAPS = [0.5, 0.25, 0.1]


def write_sbm_model(folder, shift, layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, inner=INNER, clusters=CLUSTERS,
                    positions=None):
    """A random SBM classifier. A larger `shift` of the membership logits means more edges."""
    width = heads * head_dim
    weights = Weights(width)
    # Clusters share a direction, and the second bias points along it: each logit moves by `shift`.
    direction = np.zeros(head_dim, np.float32)
    direction[0] = 1.0
    tensors = {"embeddings.word.weight": weights.normal(WORDS, width, scale=1.0)}
    for layer in range(layers):
        name = f"layers.{layer}.attention"
        tensors |= weights.attention(layer, width)
        tensors[f"{name}.clusters"] = weights.normal(heads, clusters, head_dim, scale=0.125) + direction
        tensors |= {
            f"{name}.membership.0.weight": weights.normal(head_dim, head_dim, scale=0.2),
            f"{name}.membership.0.bias": weights.normal(head_dim),
            f"{name}.membership.1.weight": weights.normal(head_dim, head_dim, scale=0.2) * (1 - direction)[:, None],
            f"{name}.membership.1.bias": np.float32(shift) * direction}
        tensors |= weights.feed_forward(layer, inner)
    tensors |= weights.norm("final_norm") | weights.linear("classifier.output", 4, width)
    config = {"task": "sequence-classification", "vocab_size": WORDS, "hidden_size": width, "num_hidden_layers": layers,
              "num_attention_heads": heads, "intermediate_size": inner, "max_position_embeddings": positions or max(LENGTHS),
              "position_embedding": "none", "pad_token_id": -1, "pooling": {"kind": "mean", "divisor": "valid"},
              "num_labels": 4, "attention": {"kind": "sbm", "num_clusters": clusters, "law": "bernoulli"}}
    write_model(folder, config, tensors)


def edges_model(folder):
    """(repository, its model, a text for it): a small model whose time is mostly that of its edges."""
    write_sbm_model(folder / "repository/edges", shift=-0.5, layers=2, heads=2, inner=64, clusters=16)
    return folder / "repository", "edges", text_of(folder, 2048, WORDS)


def ask(server, model, path, *flags):
    """(seconds of the forward pass, density, edges) of one request."""
    done = subprocess.run(
        [server.binaries / "edgewise", "predict", f"--model={model}", f"--input={path}", "--json", "--seed=7",
         "--timeout=300s", f"--server={server.address}", *flags], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"edgewise predict {model} {' '.join(flags)}: {done.stderr}{done.stdout[:300]}")
    answer = json.loads(done.stdout.splitlines()[0])
    edges = answer["predictions"][0]["edges"]
    return int(answer["timing"]["compute_us"]) / 1e6, float(edges["density"]), float(edges["edges"])


def text_of(folder, length, words):
    path = pathlib.Path(folder) / f"{length}-{words}.jsonl"
    random = np.random.default_rng(length)
    ids = random.integers(3, words, length)  # below 3 `long` has its pad, unknown word and CLS token
    path.write_text(json.dumps({"token_ids": ids.tolist()}) + "\n")
    return path


def find_shifts(binaries, folder, flags):
    """The shift of the logits for each density, by two steps of a secant on the logarithms."""
    shifts = {}
    path = text_of(folder, 1024, WORDS)
    for density in DENSITIES:
        shift = math.log(math.sqrt(density) / (1 - math.sqrt(density)))
        for step in range(3):
            repository = folder / f"find-{density}-{step}"
            write_sbm_model(repository / "m", shift)
            with Server(binaries, repository, folder, flags) as server:
                _, found, _ = ask(server, "m", path)
            shift += 0.5 * (math.log(density) - math.log(max(found, 1e-6))) / (1 - math.sqrt(density))
        shifts[density] = shift
    return shifts


def compare(servers, model, path, edges, rounds):
    """Medians over rounds of the ratios of one model and input."""
    caps = {f"cap {share:g}": [f"--max_edges={max(1, int(share * edges))}"] for share in CAPS}
    ways = {"own": [], "dense": ["--dense"]} | caps
    times = {(name, way): [] for name in servers for way in ways}
    for turn in range(rounds + 1):
        for way, flags in ways.items():
            for name, server in servers.items():
                seconds, _, _ = ask(server, model, path, *flags)
                if turn > 0:
                    times[name, way].append(seconds)
    row = {"milliseconds": {way: round(1e3 * statistics.median(times["ours", way]), 2) for way in ways}}

    def ratio(above, below):
        return round(statistics.median(a / b for a, b in zip(times[above], times[below])), 3)

    row["dense_over_own"] = ratio(("ours", "dense"), ("ours", "own"))
    for way in caps:
        row[f"{way}_over_own"] = ratio(("ours", way), ("ours", "own"))
    for way in ways if "against" in servers else []:
        row[f"against_over_ours, {way}"] = ratio(("against", way), ("ours", way))
    return row


def run(args, folder):
    """The rows, as they come."""
    flags = [f"--weights={args.weights}"]
    shifts = find_shifts(args.bin, folder, flags)
    repository = folder / "repository"
    for density, shift in shifts.items():
        write_sbm_model(repository / f"sbm-{100 * density:g}", shift)
    shutil.copytree(ROOT / "examples/models/long", repository / "long")
    cases = [(f"sbm-{100 * density:g}", length, WORDS) for density in DENSITIES for length in LENGTHS]
    cases += [("long", 2048, 883), ("long", 4095, 883)]
    with Server(args.bin, repository, folder, flags) as ours:
        other = None
        if args.against:
            (folder / "against").mkdir()
            other = Server(args.against, repository, folder / "against", flags).__enter__()
        try:
            servers = {"ours": ours} | ({"against": other} if other else {})
            for model, length, words in cases:
                path = text_of(folder, length, words)
                _, density, edges = ask(ours, model, path)
                row = {"model": model, "tokens": length, "density": round(density, 4)}
                row |= compare(servers, model, path, edges, args.rounds)
                print(json.dumps(row), flush=True)
                yield row
        finally:
            if other:
                other.__exit__()


def plot(rows, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for length in LENGTHS:
        chosen = [row for row in rows if row["tokens"] == length and row["model"] != "long"]
        axes.plot([100 * row["density"] for row in chosen], [row["dense_over_own"] for row in chosen], "o-",
                  label=f"{length} tokens")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="density, %", ylabel="dense / sparse, whole model", title="4 layers, 8 heads, 512 wide")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
