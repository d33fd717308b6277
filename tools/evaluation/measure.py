"""One model on one set of examples, asked by `edgewise evaluate`. All results are plain numbers, for results.json."""
import functools
import pathlib

import numpy as np

from evaluation import examples as example_files
from evaluation import statistics

CAPS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
SAMPLES = (1, 2, 4, 8, 16)
KEEP_CAPS = (0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005)
KEEPS = ("random", "probable")


def scores(by_seed, score="score", seeds="by_seed", **more):
    mean, half = statistics.interval(by_seed)
    return {score: mean, "ci95": half, seeds: by_seed, **more}


def point(settings, **more):
    """Settings of `edgewise evaluate`, each of a part of the inputs -> what a row of a table needs of all of them."""
    known = np.array([setting["known"] for setting in settings], float)
    answered = np.array([setting["answered"] for setting in settings], float)
    by_seed = known @ np.array([setting["quality_by_repeat"] for setting in settings]) / known.sum()
    cost = {key: float(answered @ [setting[key] for setting in settings] / answered.sum()) for key in ("edges", "density")}
    return scores(by_seed.tolist(), "accuracy", "accuracy_by_seed", **cost,
                  capped_share=sum(setting["capped"] for setting in settings) / answered.sum(), **more)


class Sweep:
    """Its seeds count up."""

    FLAGS = ("--truncate=tail",)

    def __init__(self, server, model, examples, folder, seeds, say):
        self.server, self.model, self.examples, self.seeds, self.say = server, model, examples, seeds, say
        self.folder = pathlib.Path(folder)

    def write(self, examples):
        return example_files.write(self.folder / f"{self.model}.jsonl", examples)

    def ask(self, caps, *flags, examples=None, seeds=None):
        """-> what `edgewise evaluate --json` prints: its settings are dense attention, no cap, and each cap"""
        seeds = seeds or self.seeds
        return self.server.evaluate(self.model, self.write(examples or self.examples), caps, f"--seed={seeds[0]}",
                                    f"--repeats={len(seeds)}", *self.FLAGS, *flags)

    @functools.cached_property
    def pairs(self):
        return [answer.pairs for answer in self.server.predict(self.model, self.write(self.examples), "--seed=1")]

    def capped(self, caps, *flags, **more):
        """A cap on the density of each input; one edge where that would be none, which is refused -> point"""
        groups = {}
        for example, cap, pairs in zip(self.examples, caps, self.pairs):
            groups.setdefault(cap if int(cap * pairs) >= 1 else min(1.5 / pairs, 1.0), []).append(example)
        return point([self.ask([cap], *flags, examples=examples)["settings"][2] for cap, examples in groups.items()],
                     **more)

    def caps(self):
        """Rows of CAPS, the widest first."""
        rows = []
        for cap in CAPS:
            rows.append({"cap": cap, **self.capped([cap] * len(self.examples))})
            self.say(f"{self.model}: cap {cap:.0%} accuracy {rows[-1]['accuracy']:.4f} ± {rows[-1]['ci95']:.4f}")
            if not rows[-1]["capped_share"] and rows[-1]["accuracy_by_seed"] != rows[0]["accuracy_by_seed"]:
                raise RuntimeError(f"{self.model}: a cap of {cap} drops no edge but changes answers")
        return rows

    def keeps(self):
        """Rows of the KEEP_CAPS that drop edges: the two ways to choose them, by the same seeds and so out of the same
        draws."""
        rows = []
        for cap in KEEP_CAPS:
            row = {keep: self.capped([cap] * len(self.examples), f"--keep_edges={keep}") for keep in KEEPS}
            if row["random"]["capped_share"] == 0:
                continue
            rows.append({"cap": cap, **row})
            self.say(f"{self.model}: cap {cap:.1%} keeps " + ", ".join(f"{k} {row[k]['accuracy']:.4f}" for k in KEEPS))
        return rows

    def half(self, own_density, free):
        """Each input capped at half of its own mean density, rounded down by at most 2 %.

        own_density [inputs]; free: the point without a cap, by the same seeds
        """
        row = self.capped(statistics.density_caps(np.asarray(own_density) / 2))
        lost = [a - b for a, b in zip(free["accuracy_by_seed"], row["accuracy_by_seed"])]
        row["lost"], row["lost_ci95"] = statistics.interval(lost)
        self.say(f"{self.model}: half of own edges, accuracy {row['accuracy']:.4f}, lost {row['lost']:.4f}")
        return row

    def one_sample(self):
        """-> dense attention, and a point without a cap"""
        found = self.ask(())
        dense, free = found["settings"]
        self.say(f"{self.model}: dense {dense['quality']:.4f}")
        known = dense["known"] // len(self.seeds)
        return {"accuracy": dense["quality"], "wilson95": statistics.wilson(dense["quality"] * known, known),
                "edges": dense["edges"], "device": found["device"]}, point([free])

    def free(self, one_sample):
        """Without a cap: ensembles of every size, and how the density of an input follows the input and the draw.
        -> (numbers, density [inputs])"""
        found = self.ask((), f"--samples={','.join(map(str, SAMPLES))}")["settings"][1:]
        rows = [scores(setting["quality_by_repeat"], "accuracy", "accuracy_by_seed", samples=setting["samples"])
                for setting in found]
        self.say(f"{self.model}: " + ", ".join(f"{row['samples']} samples {row['accuracy']:.4f}" for row in rows))
        path, flags = self.write(self.examples), (f"--samples={max(SAMPLES)}", "--each_sample", "--layer_stats")
        by_seed = [self.server.predict(self.model, path, f"--seed={seed}", *flags) for seed in self.seeds]
        density = np.array([[a.edges / a.pairs for a in answers] for answers in by_seed]).mean(0)
        expected = np.array([[a.expected / a.pairs for a in answers] for answers in by_seed]).mean(0)
        draws = np.concatenate([[a.sample_edges / a.pairs for a in answers] for answers in by_seed], 1)
        between, within, ratio = statistics.adaptivity(expected, draws)
        return {"one_sample": one_sample, "samples": rows,
                "edges": float(np.mean([a.edges for answers in by_seed for a in answers])),
                "pairs": float(np.mean(self.pairs)), "density": float(density.mean()),
                "density_min": float(density.min()), "density_max": float(density.max()),
                "density_by_input": [round(float(d), 5) for d in expected], "between_inputs_sd": between,
                "within_input_sd": within, "adaptivity": ratio, "draws_per_input": int(draws.shape[1])}, density

    def times(self, caps, rounds, inputs):
        """Milliseconds of compute, one request at a time; the settings take turns, so that other load hits all alike.

        caps: {name: density} -> {name: what was measured}, with "dense" and "as drawn" first
        """
        found = self.ask(caps.values(), examples=self.examples[:inputs], seeds=range(1, rounds + 1))
        return {name: {"compute_ms": row["compute_ms"]["median"], "compute_ms_quartiles": row["compute_ms"]["quartiles"],
                       "speedup": row["speed"], "total_ms": row["total_ms"]["median"], "density": row["density"],
                       "calls": row["answered"]}
                for name, row in zip(["dense", "as drawn", *caps], found["settings"])}


def classification(sweep):
    """sentiment, long, listops"""
    dense, one_sample = sweep.one_sample()
    free, density = sweep.free(one_sample)
    return {"dense": dense, "free": free, "caps": sweep.caps(), "half": sweep.half(density, one_sample)}


def tokens(sweep):
    """duplicates: every token has a label; as sampled, over all pairs, and at each cap"""
    dense, one_sample = sweep.one_sample()
    return {"dense": dense, "free": one_sample, "caps": sweep.caps()}
