"""Recipes `review-encoder` and `review-ranker`: a sentence encoder and a cross-encoder of sentences of film reviews.

Both learn from SST-2 whether two sentences have the same opinion; the encoder also, that the parts of one sentence
belong together. Both are folders as sentence-transformers saves them, in float16, and share a WordPiece tokenizer that
is trained on the same sentences. Nothing in them is Edgewise's own, and attention is dense in training.

    python tools/train/reviews.py encoder --data DIR    DIR has sst2/{train,dev,test}.tsv; trains, writes, evaluates
    python tools/train/reviews.py ranker --data DIR     likewise; starts from the encoder that is there
    ... --evaluate                                      measures the folder that is there
    ... --write-examples FILE                           pairs of test sentences (needs NumPy only)

Needs sentence-transformers beside what the other recipes need. Measures are those of the rounded weights.
"""
import argparse
import copy
import datetime
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import export
import sentiment

os.environ["HF_HUB_OFFLINE"] = "1"
LENGTH = 64
SHAPE = {"vocab_size": 3000, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 192, "max_position_embeddings": 2 * LENGTH, "hidden_dropout_prob": 0.2}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JOINED = {" n't": "n't", " 's": "'s", " 're": "'re", " 've": "'ve", " 'll": "'ll", " 'd": "'d", " 'm": "'m", "`` ": '"',
          " ''": '"', " ,": ",", " .": "."}      # the treebank sets these apart; people do not
BATCH = 128
EPOCHS = {"encoder": 10, "ranker": 10}
CANDIDATES = 10     # texts that a test sentence ranks
HALVES = 100        # halves of which one is to be found


def read(data, part):
    """-> texts, labels"""
    texts, labels = [], []
    for words, label in sentiment.read(Path(data) / "sst2" / f"{part}.tsv"):
        text = " ".join(words)
        for apart, joined in JOINED.items():
            text = text.replace(apart, joined)
        texts.append(text)
        labels.append(label)
    return texts, np.array(labels)


def candidates(count, seed=1):
    """-> [count, CANDIDATES]: for each text others at random."""
    rng = np.random.default_rng(seed)
    return (np.arange(count)[:, None] + rng.integers(1, count, (count, CANDIDATES))) % count


def ranked_right(scores, labels, chosen):
    """scores [count, CANDIDATES] -> how often an agreeing candidate is above a disagreeing one; ties count half."""
    rights = []
    for row, label, others in zip(scores, labels, labels[chosen]):
        difference = row[others == label][:, None] - row[others != label][None]
        if difference.size:
            rights.append((np.sign(difference).mean() + 1) / 2)
    return float(np.mean(rights))


def overlap(rows, others, known, size):
    """rows, others: lists of token ids -> cosines [rows, others] of their counts, rare tokens counting more."""
    frequency = np.bincount(np.concatenate([np.unique(row) for row in known]), minlength=size)
    weight = np.log(len(known) / (1 + frequency))

    def vectors(part):
        counts = np.stack([np.bincount(row, minlength=size) for row in part]) * weight
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
    return vectors(rows) @ vectors(others).T


def naive_bayes(known, labels, rows, size):
    """-> probability [rows, rows] that two texts agree, by the counts of their tokens"""
    longest = max(map(len, known))
    ratio = sentiment.log_ratios(np.stack([np.pad(row, (0, longest - len(row))) for row in known]), labels, size)
    sums = np.array([ratio[row].sum() for row in rows])
    liked = 1 / (1 + np.exp(-(sums + np.log(labels.mean() / (1 - labels.mean())))))
    return np.outer(liked, liked) + np.outer(1 - liked, 1 - liked)


def halves(rows, seed=7):
    """-> two lists: the tokens of a row at random in one or the other, in their order"""
    rng = np.random.default_rng(seed)
    first = [rng.permutation(len(row)) < len(row) / 2 for row in rows]
    return [np.array(r)[f] for r, f in zip(rows, first)], [np.array(r)[~f] for r, f in zip(rows, first)]


def halves_found(cosines_of, rows):
    """How often the nearest of HALVES second halves is that of the same sentence; cosines_of(rows, others)."""
    found = []
    rows = [row for row in rows if len(row) >= 4]
    first, second = halves(rows)
    for start in range(0, len(rows) - HALVES + 1, HALVES):
        part = slice(start, start + HALVES)
        found.append(cosines_of(first[part], second[part]).argmax(1) == np.arange(HALVES))
    return float(np.mean(found))


def make_tokenizer(texts):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=SHAPE["vocab_size"], special_tokens=SPECIAL, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=2 * LENGTH,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def encode(tokenizer, texts):
    """-> lists of token ids, without special tokens"""
    return [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def padded(rows, seconds=None):
    """Rows of token ids, in the template of one text or of two -> the arguments of BERT."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    first = [torch.tensor([2, *row[:LENGTH - 2], 3]) for row in rows]
    second = [torch.tensor([*row[:LENGTH - 2], 3]) for row in seconds] if seconds else [first[0][:0]] * len(first)
    ids = pad_sequence([torch.cat(pair) for pair in zip(first, second)], batch_first=True)
    types = pad_sequence([torch.cat([torch.zeros_like(a), torch.ones_like(b)]) for a, b in zip(first, second)],
                         batch_first=True)
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": (ids != 0).long()}


def embed(network, rows):
    """-> the mean over a row's tokens, of length 1"""
    from torch.nn import functional as F

    given = padded(rows)
    valid = given["attention_mask"][..., None]
    return F.normalize((network(**given).last_hidden_state * valid).sum(1) / valid.sum(1), dim=1)


def score(network, rows, seconds):
    """-> logits"""
    return network(**padded(rows, seconds)).logits[:, 0]


def in_batches(function, *lists):
    import torch

    with torch.no_grad():
        return torch.cat([function(*(part[i:i + 64] for part in lists)) for i in range(0, len(lists[0]), 64)]).numpy()


def thinned(rows, rng, keep):
    """The rows, each token kept with probability `keep`."""
    return [[token for token, kept in zip(row, rng.random(len(row)) < keep) if kept] or row[:1] for row in rows]


def encoder_loss(network, rows, labels, rng, temperature=0.1, own=0.4):
    """Each text has two thinned views. For one the other is the right answer by `own`, those that agree by the rest."""
    import torch
    from torch.nn import functional as F

    views = embed(network, thinned(rows, rng, 0.6) + thinned(rows, rng, 0.6))
    count, labels = len(views), labels.repeat(2)
    cosines = (views @ views.T / temperature).fill_diagonal_(-1e4)
    agree = (labels[:, None] == labels[None]).float().fill_diagonal_(0)
    other = torch.eye(count).roll(count // 2, 0)
    target = own * other + (1 - own) * agree / agree.sum(1, keepdim=True)
    return -(target * F.log_softmax(cosines, 1)).sum(1).mean()


def ranker_loss(network, rows, labels, rng):
    """A text and another of the batch agree or not. The mean of either's tokens behind the first layer has to tell its own
    opinion, too: without this guide, which is not kept, nothing is learned, since one opinion alone says nothing."""
    import torch
    from torch.nn import functional as F

    other = torch.from_numpy(rng.permutation(len(rows)))
    given = padded(thinned(rows, rng, 0.8), thinned([rows[i] for i in other], rng, 0.8))
    answer = network(**given, output_hidden_states=True)
    loss = F.binary_cross_entropy_with_logits(answer.logits[:, 0], (labels == labels[other]).float())
    for part, says in ((0, labels), (1, labels[other])):
        of_part = (given["attention_mask"] * (given["token_type_ids"] == part))[..., None]
        mean = (answer.hidden_states[1] * of_part).sum(1) / of_part.sum(1)
        loss = loss + F.binary_cross_entropy_with_logits(network.guide(mean)[:, 0], says.float())
    return loss


def train(kind, network, rows, labels, dev, args):
    """-> the running mean of the weights, at the epoch that is best by dev(network)"""
    import torch
    from muon import Optimizers, rise_and_fall

    loss_of = {"encoder": encoder_loss, "ranker": ranker_loss}[kind]
    rng, start = np.random.default_rng(args.seed), time.time()
    lengths, labels = np.array([len(row) for row in rows]), torch.from_numpy(labels)
    epochs = args.epochs or EPOCHS[kind]
    steps, step = epochs * (len(rows) // BATCH), 0
    optimizers, mean = Optimizers(network, rate=0.01), copy.deepcopy(network).eval()
    best, kept = dev(mean), copy.deepcopy(mean.state_dict())
    print(f"{kind} at first dev {best:.4f}", flush=True)
    for epoch in range(epochs):
        network.train()
        losses = []
        order = np.argsort(lengths + rng.uniform(0, 8, len(rows)))      # texts of a batch are about as long
        for first in rng.permutation(np.arange(0, len(rows) - BATCH + 1, BATCH)):
            batch = order[first:first + BATCH]
            loss = loss_of(network, [rows[i] for i in batch], labels[batch], rng)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizers.step(rise_and_fall(step, steps))
            step += 1
            with torch.no_grad():
                for slow, new in zip(mean.parameters(), network.parameters()):
                    slow.lerp_(new, 0.02)
            losses.append(loss.item())
        right = dev(mean)
        if right > best:
            best, kept = right, copy.deepcopy(mean.state_dict())
        print(f"{kind} epoch {epoch + 1} loss {np.mean(losses):.4f} dev {right:.4f} {time.time() - start:.0f} s, "
              f"{time.process_time():.0f} s of the processor", flush=True)
    mean.load_state_dict(kept)
    return mean


def save(kind, network, tokenizer):
    """The folder, as sentence-transformers writes it."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    folder = export.entry(f"review-{kind}")
    with tempfile.TemporaryDirectory() as base:
        network.to(torch.float16).save_pretrained(base)
        tokenizer.save_pretrained(base)
        if kind == "encoder":
            modules = [Transformer(base, max_seq_length=LENGTH, model_kwargs={"add_pooling_layer": False}),
                       Pooling(SHAPE["hidden_size"], pooling_mode="mean"), Normalize()]
            SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
        else:
            CrossEncoder(base, device="cpu").save_pretrained(str(folder), create_model_card=False)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)     # a server may run as another user


def agreement(kind, network, rows, labels):
    """ranked_right of `network` on the candidates of `rows`."""
    chosen = candidates(len(rows))
    if kind == "encoder":
        vectors = in_batches(lambda part: embed(network, part), rows)
        scores = (vectors[:, None] * vectors[chosen]).sum(2)
    else:
        firsts = [row for row in rows for _ in range(CANDIDATES)]
        scores = in_batches(lambda *pairs: score(network, *pairs), firsts, [rows[i] for i in chosen.flatten()])
    return ranked_right(scores.reshape(chosen.shape), labels, chosen)


def make(kind, args):
    import torch
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    start = time.time()
    texts, labels = read(args.data, "train")
    dev_texts, dev_labels = read(args.data, "dev")
    torch.manual_seed(args.seed)
    if kind == "encoder":
        tokenizer = make_tokenizer(texts)
        network = BertModel(BertConfig(**SHAPE), add_pooling_layer=False)
    else:
        tokenizer = AutoTokenizer.from_pretrained(export.entry("review-encoder"), model_max_length=2 * LENGTH)
        network = BertForSequenceClassification(BertConfig(**SHAPE, num_labels=1))
        known = AutoModel.from_pretrained(export.entry("review-encoder"), dtype=torch.float32)
        network.bert.load_state_dict(known.state_dict(), strict=False)
        network.guide = torch.nn.Linear(SHAPE["hidden_size"], 1)
    rows, dev_rows = encode(tokenizer, texts), encode(tokenizer, dev_texts)
    part = slice(None) if kind == "encoder" else slice(200)
    network = train(kind, network, rows, labels,
                    lambda mean: agreement(kind, mean, dev_rows[part], dev_labels[part]), args)
    minutes = (time.time() - start) / 60
    if kind == "ranker":
        del network.guide
    save(kind, network, tokenizer)
    result = {"name": f"review-{kind}", "date": datetime.date.today().isoformat(), "seed": args.seed,
              "command": f"python tools/train/reviews.py {kind} --data DIR", "epochs": args.epochs or EPOCHS[kind],
              "training_minutes": minutes, **evaluate(kind, args)}
    export.write_result(f"review-{kind}", result)
    print(result)


def evaluate(kind, args):
    """Measures of the folder on the test sentences, and of what it should be better than."""
    import torch
    from transformers import (AutoModel, AutoModelForSequenceClassification, AutoTokenizer, BertConfig,
                              BertForSequenceClassification, BertModel)

    folder = export.entry(f"review-{kind}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (texts, labels), (test_texts, test_labels) = read(args.data, "train"), read(args.data, "test")
    known, rows = encode(tokenizer, texts), encode(tokenizer, test_texts)
    torch.manual_seed(args.seed)
    config = BertConfig(**SHAPE, num_labels=1)
    if kind == "encoder":
        network = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
        untrained = BertModel(config, add_pooling_layer=False).eval()
    else:
        network = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
        untrained = BertForSequenceClassification(config).eval()
    size, chosen = SHAPE["vocab_size"], candidates(len(rows))
    of_chosen = lambda scores: ranked_right(np.take_along_axis(scores, chosen, 1), test_labels, chosen)
    result = {"parameters": sum(p.numel() for p in network.parameters()), "test_sentences": len(rows),
              "ranked_right": agreement(kind, network, rows, test_labels),
              "ranked_right_random_weights": agreement(kind, untrained, rows, test_labels),
              "ranked_right_word_overlap": of_chosen(overlap(rows, rows, known, size)),
              "ranked_right_naive_bayes": of_chosen(naive_bayes(known, labels, rows, size))}
    if kind == "encoder":
        cosines = lambda model: lambda a, b: (
            in_batches(lambda part: embed(model, part), a) @ in_batches(lambda part: embed(model, part), b).T)
        result |= {"halves_found": halves_found(cosines(network), rows),
                   "halves_found_random_weights": halves_found(cosines(untrained), rows),
                   "halves_found_word_overlap": halves_found(lambda a, b: overlap(a, b, known, size), rows)}
    return result


def pairs(args):
    """Test sentences, each with another one: 1 where they agree, else 0."""
    texts, labels = read(args.data, "test")
    others = candidates(len(texts))[:, 0]
    return ({"text": texts[i], "second_text": texts[others[i]], "value": float(labels[i] == labels[others[i]])}
            for i in range(min(args.count, len(texts))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["encoder", "ranker"])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--write-examples", metavar="FILE")
    parser.add_argument("--count", type=int, default=1821, help="pairs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}")
    args = parser.parse_args()
    if args.write_examples:
        export.write_examples(args.write_examples, pairs(args))
        return
    import torch
    torch.set_num_threads(1)
    if args.evaluate:
        print(evaluate(args.kind, args))
    else:
        make(args.kind, args)


if __name__ == "__main__":
    main()
