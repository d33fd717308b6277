"""Loss, accuracy or error against samples and against caps: the models of SSA and blocks, asked through the stubs.

All results are plain numbers, for results.json. A score is the mean loss in nats of a token (language models), the
share of right labels, or the mean absolute error (regression).
"""
import numpy as np

from evaluation import statistics

SAMPLES = (1, 2, 5, 10, 20, 50)
CAPS = (1.0, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)

# What a score is, and the inputs: what the recipe makes, how many of them are used without and with --full, and how
# many of these are asked for every number of samples.
MODELS = {"shakespeare-block": ("loss", 16, 4, 16, 0), "shakespeare-ssa": ("loss", 16, 4, 16, 1),
          "shakespeare-words": ("loss", 16, 4, 16, 4), "shapes": ("accuracy", 1000, 300, 1000, 1000),
          "graphs": ("error", 1000, 300, 1000, 1000)}
SOURCE = {"shapes": "generated", "graphs": "generated"}     # the others: the held-out tenth of tiny Shakespeare

# Entries that the recipes make beside the bundled one, for the comparison of Figure 7 of the SSA paper.
VARIANTS = {"dense": "trained with dense attention", "tuned": "SSA, then trained on with dense attention"}


def score(metric, examples, predictions):
    if metric == "loss":
        return -sum(p.log_likelihood for p in predictions) / sum(p.scored_tokens for p in predictions)
    if metric == "accuracy":
        return float(np.mean([p.label_id == e["label"] for p, e in zip(predictions, examples)]))
    return float(np.mean([abs(p.values[0] - e["value"]) for p, e in zip(predictions, examples)]))


# What a sample says of an input: its fields of SampleOutput.
OUTPUTS = {"loss": "token_probabilities", "accuracy": "probabilities", "error": "values"}


def prefix_score(metric, examples, outputs, count):
    """The score of the mean of the first `count` samples, which is the ensemble of so many; outputs: per input
    [samples, numbers]"""
    means = [one[:count].mean(0) for one in outputs]
    if metric == "loss":
        return float(-np.log(np.concatenate(means)).mean())
    if metric == "accuracy":
        return float(np.mean([mean.argmax() == e["label"] for mean, e in zip(means, examples)]))
    return float(np.mean([abs(mean[0] - e["value"]) for mean, e in zip(means, examples)]))


def row(by_seed, **more):
    mean, half = statistics.interval(by_seed)
    return {"score": mean, "ci95": half, "by_seed": by_seed, **more}


class Sweep:
    """One model on one set of examples; `few`: how many of them get every number of samples."""

    def __init__(self, client, model, metric, examples, few, seeds, say):
        self.client, self.model, self.metric, self.examples, self.say = client, model, metric, examples, say
        self.few, self.seeds = examples[:few], seeds
        self.device, self.tokens = "", 0

    def ask(self, examples, seed, **how):
        predictions, device = self.client.predict(self.model, examples, seed, **how)
        self.device = device or self.device
        return predictions

    def dense(self, examples=None):
        examples = examples or self.examples
        predictions = self.ask(examples, 1, dense=True)
        value, self.tokens = score(self.metric, examples, predictions), sum(p.scored_tokens for p in predictions)
        self.say(f"{self.model}: dense {self.metric} {value:.4f}")
        return value

    def capped(self, cap):
        """One sample of every input under a cap on the density; 0: none -> a row, or why the server refuses."""
        by_seed, edges, densities, capped = [], [], [], []
        for seed in self.seeds:
            predictions = self.ask(self.examples, seed, max_density=cap)
            if isinstance(predictions, str):
                self.say(f"{self.model}: cap {cap:.0%} refused")
                return {"cap": cap, "refused": predictions}
            by_seed.append(score(self.metric, self.examples, predictions))
            edges += [p.edges.edges for p in predictions]
            densities += [p.edges.density for p in predictions]
            capped += [p.edges.capped for p in predictions]
        found = row(by_seed, cap=cap, edges=float(np.mean(edges)), density=float(np.mean(densities)),
                    capped_share=float(np.mean(capped)))
        self.say(f"{self.model}: {f'cap {cap:.0%}' if cap else 'no cap'} {self.metric} {found['score']:.4f}, "
                 f"density {found['density']:.3f}")
        return found

    def samples(self):
        """Rows of SAMPLES, out of one ensemble per seed."""
        by_count = {count: [] for count in SAMPLES}
        for seed in self.seeds:
            outputs = [np.array([getattr(o, OUTPUTS[self.metric]) for o in p.sample_outputs], float)
                       for p in self.ask(self.few, seed, samples=max(SAMPLES), each_sample=True)]
            for count in SAMPLES:
                by_count[count].append(prefix_score(self.metric, self.few, outputs, count))
        rows = [row(by_seed, samples=count) for count, by_seed in by_count.items()]
        self.say(f"{self.model}: " + ", ".join(f"{r['samples']} samples {r['score']:.4f}" for r in rows))
        return rows

    def whole(self):
        """All inputs, dense and with one sample of the first seed: the loss on all of the held-out text."""
        dense = self.dense()
        return {"dense": dense, "one_sample": self.capped(0.0)["score"], "tokens": self.tokens}

    def ensemble(self):
        """The curve of Figure 7: samples, and dense attention on the same inputs."""
        return {"inputs": len(self.few), "dense": self.dense(self.few), "samples": self.samples()}


def evaluate(sweep):
    """-> the numbers of a model's entry in results.json"""
    result = {"metric": sweep.metric, "dense": sweep.dense(), "tokens": sweep.tokens, "free": sweep.capped(0.0),
              "caps": [sweep.capped(cap) for cap in CAPS]}
    if sweep.few:
        result["ensemble"] = sweep.ensemble()
    return {**result, "device": sweep.device}
