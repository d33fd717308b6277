"""Recipe `duplicates`: the synthetic task of the SBM-Transformer paper (5.1).

256 tokens are drawn uniformly from 1..256; the label of a token says whether it occurs more than once. Full attention
solves it, so the density has to grow towards 1.

    python tools/train/duplicates.py                            trains, evaluates, exports
    python tools/train/duplicates.py --write-examples FILE      held-out examples (needs NumPy only)
"""
import argparse
import datetime
import time

import numpy as np

import export

LENGTH, TOKENS = 256, 256
HELD_OUT = 10_000   # seed of the test set
CONFIG = {
    "task": "token-classification",
    "description": "Marks the tokens that occur more than once; takes exactly 256 token ids, 1 to 256",
    "vocab_size": TOKENS + 1, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 32,
    "intermediate_size": 128, "max_position_embeddings": LENGTH, "position_embedding": "none", "pad_token_id": 0,
    "num_labels": 2, "id2label": {"0": "unique", "1": "duplicate"}, "classifier_hidden_size": 0,
    "tokenizer": {"kind": "none"},
    "attention": {"kind": "sbm", "num_clusters": 128, "law": "bernoulli", "exploration": 0.01},
}


def generate(rng, count):
    """-> ids [count, LENGTH] in 1..TOKENS, labels [count, LENGTH] in {0, 1}"""
    ids = rng.integers(1, TOKENS + 1, (count, LENGTH))
    counts = np.zeros((count, TOKENS + 1), np.int64)
    np.add.at(counts, (np.arange(count)[:, None], ids), 1)
    return ids, (np.take_along_axis(counts, ids, 1) > 1).astype(np.int64)


def train(args):
    import torch
    from torch.nn import functional as F
    from evaluate import statistics
    from sbm_torch import Pass, SbmTransformer

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    model = SbmTransformer(CONFIG)
    with torch.no_grad():   # memberships start near sigmoid(5): most pairs are edges, and learning only has to keep them
        attention = model.layers[0].attention
        direction = F.normalize(torch.randn(attention.d), dim=0)
        attention.clusters.add_(direction)
        attention.membership[1].weight.mul_(0.1)
        attention.membership[1].bias.copy_(5 * direction)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, total_steps=args.steps, pct_start=0.1)
    start = time.time()
    for step in range(args.steps):
        ids, labels = (torch.from_numpy(a) for a in generate(rng, args.batch))
        # Learning to compare comes first, over all pairs; the drawn edges join for the second half.
        how = Pass(dense=step < args.steps // 2, measure=step % 250 == 0)
        logits = model(ids, how)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if not how.dense:   # reward density: one lost edge can hide the only duplicate
            loss = loss + 0.05 * (1 - how.density[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            right = (logits.argmax(-1) == labels).float().mean().item()
            density = "" if how.dense else f" density {(how.edges[0] / how.pairs).mean():.4f}"
            print(f"step {step} loss {loss.item():.4f} right {right:.4f}{density} {time.time() - start:.0f} s", flush=True)
    minutes = (time.time() - start) / 60

    ids, labels = generate(np.random.default_rng(HELD_OUT), 500)
    result, _ = statistics(model, torch.from_numpy(ids), torch.from_numpy(labels))
    export.write(model, CONFIG, export.entry("duplicates"))
    result = {"name": "duplicates", "date": datetime.date.today().isoformat(),
              "command": "python tools/train/duplicates.py", "seed": args.seed, "steps": args.steps,
              "baseline_majority": max(labels.mean(), 1 - labels.mean()), **result, "training_minutes": minutes}
    export.write_result("duplicates", result)
    print(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    args = parser.parse_args()
    if args.write_examples:
        ids, labels = generate(np.random.default_rng(HELD_OUT), args.count)
        export.write_examples(args.write_examples, ({"token_ids": i.tolist(), "labels": l.tolist()}
                                                    for i, l in zip(ids, labels)))
    else:
        train(args)


if __name__ == "__main__":
    main()
