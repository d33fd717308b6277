"""Measures a trained twin: accuracy as sampled, capped and dense, and how its density follows the input."""
import torch

from sbm_torch import Pass


def batches(ids, labels, size):
    """Batches of similar length, cut to their longest input. ids [M, n] with 0 = pad."""
    lengths = (ids != 0).sum(1)
    order = lengths.argsort()
    for start in range(0, len(order), size):
        rows = order[start:start + size]
        yield rows, ids[rows, :int(lengths[rows].max())], labels[rows]


@torch.no_grad()
def sweep(model, ids, labels, size, **how):
    """One pass over a set -> accuracy, and per input [M]: edges, expected edges, pairs, edges per layer [M, L].

    labels [M] or, for token-classification, [M, n] with -100 where there is no token.
    """
    model.eval()
    hits = total = 0
    edges, expected, pairs = (torch.zeros(len(ids), dtype=torch.double) for _ in range(3))
    layers = torch.zeros(len(ids), len(model.layers), dtype=torch.double)
    cap = how.pop("cap", None)
    for rows, batch, target in batches(ids, labels, size):
        run = Pass(measure=not how.get("dense"), cap=None if cap is None else cap[rows], **how)
        guess = model(batch, run).argmax(-1)
        target = target[:, :guess.shape[1]] if target.dim() == 2 else target
        hits += ((guess == target) & (target >= 0)).sum().item()
        total += (target >= 0).sum().item()
        pairs[rows] = run.pairs
        if run.edges:
            layers[rows] = torch.stack(run.edges, 1)
            edges[rows], expected[rows] = sum(run.edges), sum(run.expected)
    return hits / total, edges, expected, pairs, layers


def statistics(model, ids, labels, seeds=5, size=32, capped_seeds=5, shares=None):
    """-> (dict of results, budget shares: `shares`, or the mean edges of the layers).

    between: standard deviation over inputs of the mean of their expected density.
    within: root mean square over inputs of the standard deviation of the sampled density over draws.
    """
    runs = []
    for seed in range(seeds):
        torch.manual_seed(1000 + seed)
        runs.append(sweep(model, ids, labels, size))
    accuracy = torch.tensor([r[0] for r in runs], dtype=torch.double)
    pairs = runs[0][3]
    density = torch.stack([r[1] for r in runs]) / pairs
    expected = torch.stack([r[2] for r in runs]) / pairs
    layers = torch.stack([r[4] for r in runs]).mean((0, 1))
    shares = shares or [round(x, 4) for x in (layers / layers.mean()).clamp(min=1e-3).tolist()]
    half, capped = [], []
    mean_edges = torch.stack([r[1] for r in runs]).mean(0)
    for seed in range(capped_seeds):
        torch.manual_seed(2000 + seed)
        half.append(sweep(model, ids, labels, size, keep=0.5)[0])
        capped.append(sweep(model, ids, labels, size, cap=(mean_edges / 2).floor(), shares=shares)[0])
    mean = lambda values: sum(values) / len(values)
    between, within = expected.mean(0).std().item(), density.var(0).mean().sqrt().item() if seeds > 1 else 0.0
    return {
        "inputs": len(ids), "evaluation_seeds": [1000 + s for s in range(seeds)],
        "accuracy_sampled": accuracy.mean().item(), "accuracy_sampled_sd": accuracy.std().item() if seeds > 1 else 0.0,
        "accuracy_half_of_edges": mean(half), "accuracy_server_cap_half": mean(capped),
        "accuracy_dense_pattern": sweep(model, ids, labels, size, dense=True)[0],
        "density_mean": density.mean().item(), "density_min": density.mean(0).min().item(),
        "density_max": density.mean(0).max().item(),
        "density_between_inputs_sd": between, "density_within_input_sd": within,
        "adaptivity_ratio": between / max(within, 1e-12),
        "edges_per_layer_mean": layers.tolist(),
    }, shares
