"""Recipe `sentiment`: sentences of film reviews, negative or positive (SST-2).

Reads train.tsv, dev.tsv and test.tsv (sentence, tab, label) from `--data`. Several seeds are trained; the one that is
best on dev is exported. The word embeddings start from the log-ratios of naive Bayes, as 6.9k sentences are few.
The density penalty holds the mean density of each layer near a target. Two terms make the density follow the words
instead of the draw: p (1 - p) makes single edges certain, and the density has to differ between sentences.

    python tools/train/sentiment.py                             trains, evaluates, exports
    python tools/train/sentiment.py --write-examples FILE       test examples (needs NumPy only)
"""
import argparse
import copy
import datetime
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np

import export

LENGTH = 64
CONFIG = {
    "task": "sequence-classification", "description": "Sentiment of one sentence of a film review (SST-2 words)",
    "vocab_size": 0, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "max_position_embeddings": LENGTH, "position_embedding": "none", "pad_token_id": 0,
    "pooling": {"kind": "mean", "divisor": "valid"}, "num_labels": 2,
    "id2label": {"0": "negative", "1": "positive"}, "classifier_hidden_size": 0,
    "tokenizer": {"kind": "word", "vocabulary": [], "unknown_token_id": 1, "lowercase": True},
    "attention": {"kind": "sbm", "num_clusters": 16, "law": "bernoulli", "exploration": 0.01},
}


def read(path):
    """-> [(words, label)]"""
    rows = (line.rstrip("\n").rsplit("\t", 1) for line in open(path, encoding="utf-8"))
    return [(text.lower().split(), int(label)) for text, label in rows]


def encode(rows, index):
    """-> ids [M, LENGTH] padded with 0, labels [M]"""
    ids = np.zeros((len(rows), LENGTH), np.int64)
    for row, (words, _) in zip(ids, rows):
        row[:len(words)] = [index.get(word, 1) for word in words][:LENGTH]
    return ids, np.array([label for _, label in rows])


def log_ratios(ids, labels, size):
    """ln P(word | positive) / P(word | negative), add-one smoothing -> [size]; 0 for padding."""
    counts = np.ones((2, size))
    for row, label in zip(ids, labels):
        np.add.at(counts[label], row[row > 0], 1)
    counts[:, 0] = 1
    ratio = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
    ratio[0] = 0
    return ratio


def naive_bayes(train_rows, test_rows):
    """Accuracy of unigram naive Bayes over all training words."""
    words = ["<pad>", "<unk>", *sorted({w for words, _ in train_rows for w in words})]
    index = {w: i for i, w in enumerate(words)}
    ids, labels = encode(train_rows, index)
    ratio, prior = log_ratios(ids, labels, len(words)), math.log(labels.mean() / (1 - labels.mean()))
    ids, labels = encode(test_rows, index)
    ratio[1] = 0
    return float(((ratio[ids].sum(1) + prior > 0) == labels).mean())


def fold_ratios(ids, labels, size, folds):
    """The log-ratios without each fold's own sentences -> [folds, size]; sentence i belongs to fold i % folds.

    A sentence of the training set is read with the table that has not seen its label: tables that have seen it look
    surer than they are on new text.
    """
    fold = np.arange(len(ids)) % folds
    return np.stack([log_ratios(ids[fold != f], labels[fold != f], size) for f in range(folds)])


def build(seed, config, ratio, args):
    import torch
    from torch.nn import functional as F
    from sbm_torch import SbmTransformer

    torch.manual_seed(seed)
    model = SbmTransformer(config, dropout=0.3)
    with torch.no_grad():
        direction = torch.randn(config["hidden_size"])
        direction = F.normalize(direction - direction.mean(), dim=0)
        word = model.embeddings["word"].weight.normal_(std=args.spread)
        word.sub_((word @ direction)[:, None] * direction).add_(torch.from_numpy(ratio).float()[:, None] * direction)
        model.classifier["output"].weight.copy_(torch.stack([-direction, direction]))
        for layer in model.layers:
            for last in (layer.attention.output, layer.mlp["down"]):    # layers that do nothing yet: naive Bayes
                torch.nn.init.zeros_(last.weight), torch.nn.init.zeros_(last.bias)
        for layer in model.layers:   # memberships that differ from word to word from the start
            attention = layer.attention
            if not attention.sbm:
                continue
            common = F.normalize(torch.randn(attention.d), dim=0)
            attention.clusters.add_(common)
            attention.membership[1].weight.mul_(8)
    return model, direction


def fit(model, direction, ids, labels, folds, dev, args, seed):
    """Trains in place; keeps the running mean of the weights at the epoch that is best on dev -> dev accuracy."""
    import torch
    from torch.nn import functional as F
    from evaluate import sweep
    from sbm_torch import Pass

    rng = np.random.default_rng(seed)
    lengths = (ids > 0).sum(1)
    slow = [model.embeddings["word"].weight]
    rest = [p for p in model.parameters() if p is not slow[0]]
    steps = args.epochs * math.ceil(len(ids) / args.batch)
    optimizer = torch.optim.AdamW([{"params": slow, "weight_decay": 0.0}, {"params": rest}], weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [args.rate * args.slow, args.rate], total_steps=steps)
    best, kept = 0.0, None
    average = copy.deepcopy(model)
    for epoch in range(args.epochs):
        model.train()
        losses, densities = [], []
        order = np.argsort(lengths + rng.uniform(0, 6, len(ids)))
        for start in rng.permutation(np.arange(0, len(ids), args.batch)):
            rows = order[start:start + args.batch]
            batch = ids[rows][:, :lengths[rows].max()].copy()
            batch[(rng.random(batch.shape) < args.word_dropout) & (batch > 0)] = 1
            shift = torch.from_numpy(folds[(rows % len(folds))[:, None], batch]).float()[..., None] * direction
            how = Pass(keep=torch.from_numpy(rng.uniform(0.4, 1, len(rows))).float(), doubtful=True, reach=True)
            loss = F.cross_entropy(model(torch.from_numpy(batch), how, shift), torch.from_numpy(labels[rows]),
                                   label_smoothing=0.05)
            density, total = torch.zeros(()), loss
            if how.density:
                density = torch.stack(how.density).mean()
                distance = torch.stack([(d.mean() - args.density).abs() for d in how.density]).mean()
                sd = torch.stack(how.density).mean(0).std()
                total = loss + args.penalty * distance + args.variety * F.relu(0.08 - sd) + args.doubt * torch.stack(how.doubt).mean()
            optimizer.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters()):
                    mean.lerp_(new, 0.005)
            losses.append(loss.item())
            densities.append(density.item())
        torch.manual_seed(epoch)
        right = np.mean([sweep(average, *dev, 64)[0] for _ in range(3)])
        if right > best and epoch >= args.epochs // 3:
            best, kept = right, {k: v.clone() for k, v in average.state_dict().items()}
        print(f"seed {seed} epoch {epoch} loss {np.mean(losses):.4f} density {np.mean(densities):.3f} dev {right:.4f}",
              flush=True)
    model.load_state_dict(kept)
    return best


def train(args):
    import torch
    from evaluate import statistics

    torch.set_num_threads(1)
    rows = {part: read(Path(args.data) / "sst2" / f"{part}.tsv") for part in ("train", "dev", "test")}
    counts = Counter(word for words, _ in rows["train"] for word in words)
    vocabulary = ["<pad>", "<unk>", *(w for w, c in sorted(counts.items(), key=lambda x: (-x[1], x[0])) if c >= 2)]
    index = {word: i for i, word in enumerate(vocabulary)}
    config = {**CONFIG, "vocab_size": len(vocabulary),
              "tokenizer": {**CONFIG["tokenizer"], "vocabulary": vocabulary}}
    ids, labels = encode(rows["train"], index)
    ratio = log_ratios(ids, labels, len(vocabulary))
    folds = fold_ratios(ids, labels, len(vocabulary), 20) - ratio
    dev, test = (tuple(map(torch.from_numpy, encode(rows[part], index))) for part in ("dev", "test"))
    bayes = naive_bayes(rows["train"], rows["test"])
    print(f"vocabulary {len(vocabulary)}, naive Bayes on test {bayes:.4f}", flush=True)

    start, best, chosen = time.time(), 0.0, None
    for seed in range(1, args.seeds + 1):
        model, direction = build(seed, config, ratio, args)
        right = fit(model, direction, ids, labels, folds, dev, args, seed)
        if right > best:
            best, chosen, winner = right, model, seed
    minutes = (time.time() - start) / 60

    result, shares = statistics(chosen, *test, size=64)
    export.write(chosen, {**config, "budget_shares": shares}, export.entry("sentiment"))
    result = {"name": "sentiment", "date": datetime.date.today().isoformat(),
              "command": "python tools/train/sentiment.py", "seeds": list(range(1, args.seeds + 1)), "seed": winner,
              "accuracy_dev": best, "baseline_naive_bayes": bayes, **result, "training_minutes": minutes}
    export.write_result("sentiment", result)
    print(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=1820)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--spread", type=float, default=0.5, help="of the random part of the word embeddings")
    parser.add_argument("--slow", type=float, default=0.5, help="learning rate of the embeddings, relative")
    parser.add_argument("--word_dropout", type=float, default=0.25)
    parser.add_argument("--density", type=float, default=0.25, help="the penalty acts above this mean density")
    parser.add_argument("--penalty", type=float, default=2.0)
    parser.add_argument("--variety", type=float, default=5.0,
                        help="weight of the standard deviation over sentences that the density lacks to 0.08")
    parser.add_argument("--doubt", type=float, default=2.0, help="weight of the mean of p (1 - p)")
    args = parser.parse_args()
    if args.write_examples:
        rows = read(Path(args.data) / "sst2" / "test.tsv")[:args.count]
        export.write_examples(args.write_examples, ({"text": " ".join(w), "label": label} for w, label in rows))
    else:
        train(args)


if __name__ == "__main__":
    main()
