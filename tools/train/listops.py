"""Recipe `listops`: nested list operations, after the ListOps of the Long Range Arena, in short.

Operators, values, arguments and tokens are the arena's: [MIN, [MAX, [MED (median, truncated), [SM (sum modulo 10), an
argument is an operator with probability 0.25, tokens have ids 1..15 in sorted order. The sizes are smaller: 2 to 5
arguments instead of 10, nesting up to 5 operators instead of 9, and 16 to 256 tokens instead of 500 to 2,000. Long
expressions saturate (a long [MAX is 9), which makes guessing by the first operator hard to beat.

In training, every operator and closing bracket also predicts the value and the depth of its own expression, by heads
that are not exported.

Three stages: most of the training, with two heads; a finish in which few of the drawn edges are kept; and a widening.
There every head is doubled, and the first two layers learn to do the work. `budget_shares` give them what an edge budget
allows before the others get any: at half of its edges the model has nearly all of those.

    python tools/train/listops.py                               trains, evaluates, exports
    python tools/train/listops.py --resume FOLDER               only the widening, from the model that stands before it
    python tools/train/listops.py --write-examples FILE         held-out examples (needs NumPy only)
"""
import argparse
import datetime
import time

import numpy as np

import export

MAX_ARGUMENTS, MAX_DEPTH, SHORTEST, LENGTH = 5, 5, 16, 256
OPERATOR_PROBABILITY = 0.25
CLOSE, OPERATORS = 11, {12: "[MAX", 13: "[MED", 14: "[MIN", 15: "[SM"}
VOCABULARY = ["<pad>", *map(str, range(10)), "X", *OPERATORS.values()]
HELD_OUT = 30_000       # seed of the test set
NARROW = export.ROOT / "build" / "train" / "listops"        # where the model before the widening is left
SHARES = [100, 100, 1, 1]       # of an edge budget, after the widening
CONFIG = {
    "task": "sequence-classification", "description": "Value of a nested list expression (ListOps, 16 to 256 tokens)",
    "vocab_size": len(VOCABULARY), "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "max_position_embeddings": LENGTH, "position_embedding": "learned", "pad_token_id": 0,
    "pooling": {"kind": "mean", "divisor": "valid"}, "num_labels": 10,
    "id2label": {str(i): str(i) for i in range(10)}, "classifier_hidden_size": 64,
    "tokenizer": {"kind": "word", "vocabulary": VOCABULARY, "substitutions": {"]": "X", "(": "", ")": ""}},
    "attention": {"kind": "sbm", "num_clusters": 32, "law": "bernoulli", "exploration": 0.01},
}


def apply(operator, values):
    if operator == 12:
        return max(values)
    if operator == 14:
        return min(values)
    if operator == 15:
        return sum(values) % 10
    values, middle = sorted(values), len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) // 2


def expression(rng, depth, most, ids, values, depths):
    """Appends a tree whose root is an operator at `depth` -> its value; values and depths are -1 at digits."""
    operator, at = rng.randrange(12, 16), len(ids)
    ids.append(operator), values.append(-1), depths.append(depth)
    arguments = []
    for _ in range(rng.randrange(2, MAX_ARGUMENTS + 1)):
        if depth < most and rng.random() < OPERATOR_PROBABILITY:
            arguments.append(expression(rng, depth + 1, most, ids, values, depths))
        else:
            arguments.append(rng.randrange(10))
            ids.append(1 + arguments[-1]), values.append(-1), depths.append(depth)
    result = apply(operator, arguments)
    values[at] = result
    ids.append(CLOSE), values.append(result), depths.append(depth)
    return result


def generate(rng, count, most=MAX_DEPTH, shortest=SHORTEST):
    """rng: random.Random -> ids [count, LENGTH], labels [count], values and depths [count, LENGTH] with -100."""
    ids = np.zeros((count, LENGTH), np.int64)
    labels, values, depths = np.zeros(count, np.int64), np.full_like(ids, -100), np.full_like(ids, -100)
    row = 0
    while row < count:
        tree = ([], [], [])
        result = expression(rng, 1, most, *tree)
        if shortest <= len(tree[0]) <= LENGTH:
            n = len(tree[0])
            ids[row, :n], depths[row, :n], labels[row] = tree[0], tree[2], result
            values[row, :n] = [v if v >= 0 else -100 for v in tree[1]]
            row += 1
    return ids, labels, values, depths


def stream(rng, batch, most, shortest, group=16):
    """Batches of similar length, cut to their longest: `group` batches at a time are sorted and shuffled."""
    while True:
        arrays = generate(rng, batch * group, most(), shortest())
        order = (arrays[0] > 0).sum(1).argsort()
        for part in rng.sample(range(group), group):
            rows = order[part * batch:(part + 1) * batch]
            longest = (arrays[0][rows] > 0).sum(1).max()
            yield [a[rows, :longest] if a.ndim == 2 else a[rows] for a in arrays]


def heuristics(train_set, test_set):
    """Accuracy on the test set of rules that need no nesting; constants are fitted on the training set."""
    (ids, labels), (test, truth) = train_set, test_set
    constant = np.bincount(labels).argmax()
    by_operator = {o: np.bincount(labels[ids[:, 0] == o]).argmax() for o in OPERATORS}
    digits = [row[(row >= 1) & (row <= 10)] - 1 for row in test]
    flat = [apply(row[0], list(d)) for row, d in zip(test, digits)]
    return {
        "majority": float((truth == constant).mean()),
        "first_digit": float((truth == [d[0] for d in digits]).mean()),
        "constant_of_first_operator": float((truth == [by_operator[row[0]] for row in test]).mean()),
        "first_operator_over_all_digits": float((truth == flat).mean()),
        "constants": {OPERATORS[o]: int(v) for o, v in by_operator.items()},
    }


def build():
    """The untrained model."""
    import torch
    from torch.nn import functional as F
    from sbm_torch import SbmTransformer

    model = SbmTransformer(CONFIG)
    with torch.no_grad():
        # The position table starts as sinusoids of wavelengths 4 to 1,000: nesting is about what stands before and after.
        angle = torch.arange(LENGTH)[:, None] * 2 * np.pi / 4 / 250 ** torch.linspace(0, 1, CONFIG["hidden_size"] // 2)
        model.embeddings["position"].weight.copy_(0.5 * torch.cat([angle.sin(), angle.cos()], 1))
        for layer in model.layers:      # start with most pairs as edges; the price of the edges comes later
            direction = F.normalize(torch.randn(layer.attention.d), dim=0)
            layer.attention.clusters.add_(direction)
            layer.attention.membership[1].bias.copy_(3 * direction)
    return model


class Descent:
    """Optimizer and schedule of one stage, and what it prints. `heads` predict inner values and depths."""

    def __init__(self, model, heads, rate, steps, fixed=()):
        import torch

        self.model, self.heads, self.start, self.rows = model, heads, time.time(), []
        self.parameters = [p for name, p in model.named_parameters() if not any(part in name for part in fixed)]
        self.parameters += heads.parameters()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, rate, total_steps=steps, pct_start=0.05)

    def step(self, number, batch, how, penalty=0.0):
        """One batch of stream(); `penalty` is the price of the density."""
        import torch
        from torch.nn import functional as F

        ids, labels, values, depths = (torch.from_numpy(a) for a in batch)
        x, valid = self.model.encode(ids, how)
        pooled = (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        logits, extra = self.model.classify(pooled), self.heads(x)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(extra[..., :10].transpose(1, 2), values) \
            + 0.3 * F.cross_entropy(extra[..., 10:].transpose(1, 2), depths - (depths > 0).long())
        if penalty:
            loss = loss + penalty * torch.stack(how.density).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.schedule.step()

        known = values >= 0
        self.rows.append([loss.item(), (logits.argmax(-1) == labels).float().mean().item(),
                          (extra[..., :10].argmax(-1) == values)[known].float().mean().item(),
                          (extra[..., 10:].argmax(-1) + 1 == depths)[depths > 0].float().mean().item()])
        if number % 200 == 199:
            loss, *right = np.mean(self.rows, 0).round(3)
            print(f"step {number} loss {loss} right: label, inner values, depths {right} "
                  f"{time.time() - self.start:.0f} s", flush=True)
            self.rows = []


def learn(args, model, heads, rng):
    """The first two stages: over all pairs, then over drawn edges at a price, then over few of them."""
    import torch
    from sbm_torch import Pass

    part = 0.0
    source = stream(rng, args.batch, lambda: 2 if part < 0.12 else 3 if part < 0.25 else MAX_DEPTH,
                    lambda: 4 if part < 0.25 else SHORTEST)
    for step in range(args.steps + args.finish):
        if step in (0, args.steps):     # the finish has a schedule of its own
            descent = Descent(model, heads, *((args.rate, args.steps) if step == 0 else (args.rate / 2, args.finish)))
        part = step / args.steps
        dense = part < args.dense or step % 8 == 0
        keep = 1 - (0.65 * torch.rand(args.batch)) * min(1, max(0, 4 * (part - args.dense)))
        if part >= 1:
            keep = 0.15 + 0.45 * torch.rand(args.batch)
        descent.step(step, next(source), Pass(dense=dense, keep=keep, reach=True), 0.0 if dense else args.penalty)


def spare(args, narrow, heads, rng):
    """The widening -> the model with twice the heads. Memberships and clusters are not trained.

    Attention of the last two layers starts from zero and has no edges until the last `args.join` steps, in which it has
    them in every other batch. Without them, half of the inputs lose a part of the edges of the first two layers, too.
    """
    import torch
    from sbm_torch import Pass, widen

    model = widen(narrow, 2, 0.1)
    for layer in model.layers[2:]:
        for parameter in layer.attention.output.parameters():
            torch.nn.init.zeros_(parameter)
    source, ones = stream(rng, args.batch, lambda: MAX_DEPTH, lambda: SHORTEST), torch.ones(args.batch)
    part = lambda least: torch.where(torch.rand(args.batch) < 0.5, ones, least + (1 - least) * torch.rand(args.batch))
    for steps, rate, every in ((args.wide, args.rate, 0), (args.join, args.rate / 5, 2)):
        descent = Descent(model, heads, rate, steps, ("membership", "clusters"))
        for step in range(steps):
            first, last = (ones, part(0.0)) if every and step % every else (part(0.4), None)
            descent.step(step, next(source), Pass(keep=[first, first, last, last], fixed=True))
    return model


def train(args):
    import random
    import torch
    from evaluate import statistics

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng, start = random.Random(args.seed), time.time()
    model, heads = build(), torch.nn.Linear(CONFIG["hidden_size"], 10 + MAX_DEPTH)
    if args.resume:     # the exported model has no heads for the inner values: they are learned again
        model.load_state_dict({name: torch.from_numpy(value)
                               for name, value in export.read(args.resume)[1].items()})
    else:
        learn(args, model, heads, rng)
        export.write(model, CONFIG, NARROW)
    model = spare(args, model, heads, rng)
    config = {**model.config, "budget_shares": SHARES}
    minutes = (time.time() - start) / 60
    export.write(model, config, export.entry("listops"))

    test, labels, _, _ = generate(random.Random(HELD_OUT), 1000)
    rules = heuristics(generate(random.Random(HELD_OUT + 1), 5000)[:2], (test, labels))
    result, _ = statistics(model, torch.from_numpy(test), torch.from_numpy(labels), size=50, shares=SHARES)
    result = {"name": "listops", "date": datetime.date.today().isoformat(), "command": "python tools/train/listops.py",
              "seed": args.seed, "steps": args.steps, "finish": args.finish, "wide": args.wide, "join": args.join,
              "longest": LENGTH, "max_arguments": MAX_ARGUMENTS, "max_depth": MAX_DEPTH, "baselines": rules,
              **result, "training_minutes": minutes}
    export.write_result("listops", result)
    print(result)


def main():
    import random
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=13000)
    parser.add_argument("--finish", type=int, default=2000, help="further steps with few of the drawn edges")
    parser.add_argument("--wide", type=int, default=8000, help="steps with twice the heads")
    parser.add_argument("--join", type=int, default=600, help="of the last steps, in which all layers have edges")
    parser.add_argument("--resume", metavar="FOLDER", help="only the widening, from this model of two heads")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dense", type=float, default=0.5, help="part of the steps that learn over all pairs")
    parser.add_argument("--penalty", type=float, default=0.3)
    args = parser.parse_args()
    if args.write_examples:
        ids, labels, _, _ = generate(random.Random(HELD_OUT), args.count)
        export.write_examples(args.write_examples, ({"text": " ".join(VOCABULARY[i] for i in row if i), "label": int(l)}
                                                    for row, l in zip(ids, labels)))
    else:
        train(args)


if __name__ == "__main__":
    main()
