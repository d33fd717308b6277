"""Sweeps over caps, samples and seeds, of one model each. All results are plain numbers, for results.json."""
import pathlib

import numpy as np

from evaluation import examples as example_files
from evaluation import statistics

CAPS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
SAMPLES = (1, 2, 4, 8, 16)
KEEP_CAPS = (0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005)
KEEPS = ("random", "probable")


def truth(examples):
    """The labels of each example: [1], or one per token with -1 where there is none."""
    return [np.array([-1 if t is None else t for t in e["labels"]] if "labels" in e else [e["label"]])
            for e in examples]


def right_share(labels, known):
    """labels, known: one array per input -> share of the known labels that are right"""
    right = total = 0
    for guess, label in zip(labels, known):
        right += int(((guess == label) & (label >= 0)).sum())
        total += int((label >= 0).sum())
    return right / total


def mean_of(answers, field):
    return float(np.mean([getattr(a, field) for a in answers]))


def point(answers_by_seed, known):
    """One setting, answers per seed -> what a row of a table needs."""
    by_seed = [right_share([a.labels for a in answers], known) for answers in answers_by_seed]
    mean, half = statistics.interval(by_seed)
    flat = [a for answers in answers_by_seed for a in answers]
    return {"accuracy": mean, "ci95": half, "accuracy_by_seed": by_seed, "edges": mean_of(flat, "edges"),
            "density": float(np.mean([a.edges / a.pairs for a in flat])), "capped_share": mean_of(flat, "capped")}


class Sweep:
    """One model on one set of examples."""

    def __init__(self, server, model, examples, folder, seeds, say):
        self.server, self.model, self.examples, self.seeds, self.say = server, model, examples, seeds, say
        self.folder, self.known = pathlib.Path(folder), truth(examples)
        self.path = example_files.write(self.folder / f"{model}.jsonl", examples)
        self.pairs = []

    def ask(self, *flags):
        """-> answers per seed"""
        return [self.server.predict(self.model, self.path, f"--seed={seed}", *flags) for seed in self.seeds]

    def ask_capped(self, caps, *flags):
        """As ask(), with a cap on the density of each input; one edge where that would be none, which is refused."""
        groups = {}
        for i, (cap, pairs) in enumerate(zip(caps, self.pairs)):
            groups.setdefault(f"--max_density={cap!r}" if int(cap * pairs) >= 1 else "--max_edges=1", []).append(i)
        by_seed = [[None] * len(self.examples) for _ in self.seeds]
        for flag, indices in groups.items():
            path = example_files.write(self.folder / f"{self.model}-capped.jsonl", [self.examples[i] for i in indices])
            for answers, seed in zip(by_seed, self.seeds):
                for i, answer in zip(indices, self.server.predict(self.model, path, f"--seed={seed}", flag, *flags)):
                    answers[i] = answer
        return by_seed

    def dense(self):
        """First of all sweeps: the others need to know the pairs of the inputs."""
        answers = self.server.predict(self.model, self.path, "--dense", "--seed=1")
        self.pairs = [a.pairs for a in answers]
        share = right_share([a.labels for a in answers], self.known)
        total = sum(int((k >= 0).sum()) for k in self.known)
        self.say(f"{self.model}: dense {share:.4f}")
        return {"accuracy": share, "wilson95": statistics.wilson(share * total, total),
                "edges": mean_of(answers, "edges"), "device": answers[0].device}

    def caps(self):
        """Rows of CAPS, from the tightest up. Once a cap bites nowhere, wider ones cannot either, and the server
        promises the same answers: they repeat the row of 100 %, which is measured, as is the first that did not bite.
        """
        everything = self.cap_row(1.0)
        rows, open_ended = [], False
        for cap in sorted(CAPS)[:-1]:
            row = {**everything, "cap": cap, "repeats": 1.0} if open_ended else self.cap_row(cap)
            if row["capped_share"] == 0 and row["accuracy_by_seed"] != everything["accuracy_by_seed"]:
                raise RuntimeError(f"{self.model}: a cap of {cap} drops no edge but changes answers")
            open_ended = row["capped_share"] == 0
            rows.append(row)
        return [everything, *reversed(rows)]

    def cap_row(self, cap):
        row = {"cap": cap, **point(self.ask_capped([cap] * len(self.examples)), self.known)}
        self.say(f"{self.model}: cap {cap:.0%} accuracy {row['accuracy']:.4f} ± {row['ci95']:.4f}")
        return row

    def keeps(self):
        """Rows of the KEEP_CAPS that drop edges: the two ways to choose them, by the same seeds and so out of the same
        draws."""
        rows = []
        for cap in KEEP_CAPS:
            caps = [cap] * len(self.examples)
            row = {keep: point(self.ask_capped(caps, f"--keep_edges={keep}"), self.known) for keep in KEEPS}
            if row["random"]["capped_share"] == 0:
                continue
            rows.append({"cap": cap, **row})
            self.say(f"{self.model}: cap {cap:.1%} keeps " + ", ".join(f"{k} {row[k]['accuracy']:.4f}" for k in KEEPS))
        return rows

    def half(self, own_density, free):
        """Each input capped at half of its own mean density, rounded down by at most 2 %.

        own_density [inputs]; free: the point without a cap, by the same seeds
        """
        row = point(self.ask_capped(statistics.density_caps(np.asarray(own_density) / 2)), self.known)
        lost = [a - b for a, b in zip(free["accuracy_by_seed"], row["accuracy_by_seed"])]
        row["lost"], row["lost_ci95"] = statistics.interval(lost)
        self.say(f"{self.model}: half of own edges, accuracy {row['accuracy']:.4f}, lost {row['lost']:.4f}")
        return row

    def free(self, samples=max(SAMPLES)):
        """Without a cap: ensembles of every size out of one call per seed. The first k samples of an ensemble are the
        ensemble of k, as the server promises; check_prefix() holds it to that."""
        answers_by_seed = self.ask(f"--samples={samples}", "--each_sample", "--layer_stats")
        known = np.concatenate(self.known)
        rows = []
        for count in SAMPLES:
            by_seed = [statistics.accuracy(statistics.prefix_labels([a.samples for a in answers], count), known)
                       for answers in answers_by_seed]
            mean, half = statistics.interval(by_seed)
            rows.append({"samples": count, "accuracy": mean, "ci95": half, "accuracy_by_seed": by_seed})
            self.say(f"{self.model}: {count} samples, accuracy {mean:.4f} ± {half:.4f}")
        # The cost of one sample; its draws are those of the capped runs with the same seeds.
        first = np.array([[a.sample_edges[0] for a in answers] for answers in answers_by_seed])
        one = {**rows[0], "edges": float(first.mean()), "density": float((first / self.pairs).mean()),
               "capped_share": 0.0}
        flat = [a for answers in answers_by_seed for a in answers]
        density = np.array([[a.edges / a.pairs for a in answers] for answers in answers_by_seed]).mean(0)
        expected = np.array([[a.expected / a.pairs for a in answers] for answers in answers_by_seed]).mean(0)
        draws = np.concatenate([np.array([a.sample_edges / a.pairs for a in answers])
                                for answers in answers_by_seed], 1)
        between, within, ratio = statistics.adaptivity(expected, draws)
        return {"one_sample": one, "samples": rows, "edges": mean_of(flat, "edges"), "pairs": mean_of(flat, "pairs"),
                "density": float(density.mean()), "density_min": float(density.min()),
                "density_max": float(density.max()), "density_by_input": [round(float(d), 5) for d in expected],
                "between_inputs_sd": between, "within_input_sd": within, "adaptivity": ratio,
                "draws_per_input": int(draws.shape[1])}, density

    def check_prefix(self, inputs=8, count=4):
        """Raises unless `count` samples answer what the first `count` of more samples average to."""
        path = example_files.write(self.folder / f"{self.model}-check.jsonl", self.examples[:inputs])
        flags = (f"--seed={self.seeds[0]}", "--each_sample")
        whole = self.server.predict(self.model, path, *flags, f"--samples={2 * count}")
        part = self.server.predict(self.model, path, *flags, f"--samples={count}")
        for a, b in zip(whole, part):
            if not np.array_equal(a.samples[:count], b.samples):
                raise RuntimeError(f"{self.model}: the first samples of an ensemble depend on its size")

    def times(self, caps, rounds, inputs):
        """Milliseconds of compute, one request at a time; the settings take turns, so that other load hits all alike.

        caps: {name: density} -> {name: what was measured}, with "dense" and "as drawn" first
        """
        path = example_files.write(self.folder / f"{self.model}-times.jsonl", self.examples[:inputs])
        found = self.server.evaluate(self.model, path, caps.values(), f"--repeats={rounds}", "--truncate=tail")
        return {name: {"compute_ms": row["compute_ms"]["median"], "compute_ms_quartiles": row["compute_ms"]["quartiles"],
                       "speedup": row["speed"], "total_ms": row["total_ms"]["median"], "density": row["density"],
                       "calls": row["answered"]}
                for name, row in zip(["dense", "as drawn", *caps], found["settings"])}


def classification(sweep):
    """sentiment, long, listops"""
    sweep.check_prefix()
    result = {"dense": sweep.dense()}
    result["free"], density = sweep.free()
    result["caps"] = sweep.caps()
    result["half"] = sweep.half(density, result["free"]["one_sample"])
    return result


def tokens(sweep):
    """duplicates: every token has a label; as sampled, over all pairs, and at each cap"""
    result = {"dense": sweep.dense(), "free": point(sweep.ask(), sweep.known)}
    result["caps"] = sweep.caps()
    return result
