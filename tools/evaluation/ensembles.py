"""Loss, accuracy or error against samples and against caps: the models of SSA and blocks.

All results are plain numbers, for results.json. A score is the mean loss in nats of a token (language models), the
share of right labels, or the mean absolute error (regression).
"""
from evaluation import measure

SAMPLES = (1, 2, 5, 10, 20, 50)
CAPS = (1.0, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)

# For each model: its score; its inputs, as the recipe makes them; how many of them are used without and with --full, and
# how many of these are asked for every number of samples.
MODELS = {"shakespeare-block": ("loss", 16, 4, 16, 0), "shakespeare-ssa": ("loss", 16, 4, 16, 1),
          "shakespeare-words": ("loss", 16, 4, 16, 4), "shapes": ("accuracy", 1000, 300, 1000, 1000),
          "graphs": ("error", 1000, 300, 1000, 1000)}
SOURCE = {"shapes": "generated", "graphs": "generated"}     # the others: the held-out tenth of tiny Shakespeare

# Entries that the recipes make beside the bundled one, for the comparison of Figure 7 of the SSA paper.
VARIANTS = {"dense": "trained with dense attention", "tuned": "SSA, then trained on with dense attention"}


class Sweep(measure.Sweep):
    """`few`: how many of the examples get every number of samples."""

    FLAGS = ()      # texts beyond the context are scored in windows

    def __init__(self, server, model, metric, examples, few, seeds, folder, say):
        super().__init__(server, model, examples, folder, seeds, say)
        self.metric, self.few = metric, examples[:few]

    def ask(self, *arguments, **options):
        found = super().ask(*arguments, **options)
        if found["measure"] != self.metric:
            raise RuntimeError(f"{self.model}: measured the {found['measure']}, not the {self.metric}")
        return found

    def compare(self, examples, caps, seeds):
        """Dense attention, no cap and each cap, one sample of every input by each of `seeds`.

        -> {"dense": score, "tokens": scored ones, "free": a row, "caps": rows, or why the server refuses, "device"}
        """
        found = self.ask(caps, examples=examples, seeds=seeds)
        dense, free, *capped = found["settings"]
        self.say(f"{self.model}: dense {self.metric} {dense['quality']:.4f}")
        return {"dense": dense["quality"], "tokens": dense["scored_tokens"] // len(seeds), "free": self.row(free, 0.0),
                "caps": [self.row(setting, cap) for setting, cap in zip(capped, caps)], "device": found["device"]}

    def row(self, setting, cap):
        """cap 0: none"""
        if setting["refused"]:
            self.say(f"{self.model}: cap {cap:.0%} refused")
            return {"cap": cap, "refused": setting["refusal"]}
        found = measure.scores(setting["quality_by_repeat"], cap=cap, edges=setting["edges"], density=setting["density"],
                               capped_share=setting["capped"] / setting["answered"])
        self.say(f"{self.model}: {f'cap {cap:.0%}' if cap else 'no cap'} {self.metric} {found['score']:.4f}, "
                 f"density {found['density']:.3f}")
        return found

    def whole(self):
        """All inputs, dense and with one sample of the first seed: the loss on all of the held-out text."""
        found = self.compare(self.examples, (), self.seeds[:1])
        return {"dense": found["dense"], "one_sample": found["free"]["score"], "tokens": found["tokens"]}

    def ensemble(self):
        """The curve of Figure 7: samples, and dense attention on the same inputs."""
        dense, *found = self.ask((), f"--samples={','.join(map(str, SAMPLES))}", examples=self.few)["settings"]
        rows = [measure.scores(setting["quality_by_repeat"], samples=setting["samples"]) for setting in found]
        self.say(f"{self.model}: " + ", ".join(f"{r['samples']} samples {r['score']:.4f}" for r in rows))
        return {"inputs": len(self.few), "dense": dense["quality"], "samples": rows}


def evaluate(sweep):
    """-> the numbers of a model's entry in results.json"""
    result = {"metric": sweep.metric, **sweep.compare(sweep.examples, CAPS, sweep.seeds)}
    if sweep.few:
        result["ensemble"] = sweep.ensemble()
    return result
