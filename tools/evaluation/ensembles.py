"""Loss, accuracy or error against samples and against caps: the models of SSA and blocks.

All results are plain numbers, for results.json. A score is the mean loss in nats of a token (language models), the
share of right labels, or the mean absolute error (regression).
"""
import pathlib

import numpy as np

from evaluation import examples as example_files
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


# The fields of SampleOutput that hold a sample's answer to an input.
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
    """One model on one set of examples; `few`: how many of them get every number of samples.

    server: asked by `edgewise evaluate`; client: of the same server, for the outputs of each sample
    """

    def __init__(self, server, client, model, metric, examples, few, seeds, folder, say):
        self.server, self.client, self.model, self.metric, self.say = server, client, model, metric, say
        self.examples, self.few, self.seeds, self.folder = examples, examples[:few], seeds, pathlib.Path(folder)

    def compare(self, examples, caps, seeds):
        """Dense attention, no cap and each cap, one sample of every input by each of `seeds`, which count up.

        -> {"dense": score, "tokens": scored ones, "free": a row, "caps": rows, or why the server refuses, "device"}
        """
        path = example_files.write(self.folder / f"{self.model}-compared.jsonl", examples)
        found = self.server.evaluate(self.model, path, caps, f"--seed={seeds[0]}", f"--repeats={len(seeds)}")
        if found["measure"] != self.metric:
            raise RuntimeError(f"{self.model}: measured the {found['measure']}, not the {self.metric}")
        dense, free, *capped = found["settings"]
        self.say(f"{self.model}: dense {self.metric} {dense['quality']:.4f}")
        return {"dense": dense["quality"], "tokens": dense["scored_tokens"] // len(seeds), "free": self.row(free, 0.0),
                "caps": [self.row(setting, cap) for setting, cap in zip(capped, caps)], "device": found["device"]}

    def row(self, setting, cap):
        """cap 0: none"""
        if setting["refused"]:
            self.say(f"{self.model}: cap {cap:.0%} refused")
            return {"cap": cap, "refused": setting["refusal"]}
        found = row(setting["quality_by_repeat"], cap=cap, edges=setting["edges"], density=setting["density"],
                    capped_share=setting["capped"] / setting["answered"])
        self.say(f"{self.model}: {f'cap {cap:.0%}' if cap else 'no cap'} {self.metric} {found['score']:.4f}, "
                 f"density {found['density']:.3f}")
        return found

    def samples(self):
        """Rows of SAMPLES, out of one ensemble per seed."""
        by_count = {count: [] for count in SAMPLES}
        for seed in self.seeds:
            outputs = [np.array([getattr(o, OUTPUTS[self.metric]) for o in p.sample_outputs], float)
                       for p in self.client.predict(self.model, self.few, seed, max(SAMPLES))]
            for count in SAMPLES:
                by_count[count].append(prefix_score(self.metric, self.few, outputs, count))
        rows = [row(by_seed, samples=count) for count, by_seed in by_count.items()]
        self.say(f"{self.model}: " + ", ".join(f"{r['samples']} samples {r['score']:.4f}" for r in rows))
        return rows

    def whole(self):
        """All inputs, dense and with one sample of the first seed: the loss on all of the held-out text."""
        found = self.compare(self.examples, (), self.seeds[:1])
        return {"dense": found["dense"], "one_sample": found["free"]["score"], "tokens": found["tokens"]}

    def ensemble(self):
        """The curve of Figure 7: samples, and dense attention on the same inputs."""
        return {"inputs": len(self.few), "dense": self.compare(self.few, (), self.seeds[:1])["dense"],
                "samples": self.samples()}


def evaluate(sweep):
    """-> the numbers of a model's entry in results.json"""
    result = {"metric": sweep.metric, **sweep.compare(sweep.examples, CAPS, sweep.seeds)}
    if sweep.few:
        result["ensemble"] = sweep.ensemble()
    return result
