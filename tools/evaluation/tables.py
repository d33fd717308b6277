"""The tables of examples/README.md, made of results.json. Pure: text in, text out."""
import re
import textwrap

from evaluation import ensemble_tables, ensembles, overrides
from evaluation.markdown import accuracy_text, cap_text, count_text, percent, skipped, table

NAMES = ("duplicates", "sentiment", "long", "listops")
TARGET_LOSS, TARGET_ADAPTIVITY = 0.01, 3.0


def free_point(entry):
    """Without a cap, one sample."""
    return entry["free"].get("one_sample", entry["free"])


def best_baseline(entry):
    """(what, accuracy), or None"""
    return max(entry["baselines"].items(), key=lambda item: item[1]) if entry.get("baselines") else None


def summary(models):
    rows = []
    for name in NAMES:
        entry = models.get(name)
        if entry is None or "skipped" in entry:
            rows.append([f"`{name}`", "not measured", "", "", "", "", ""])
            continue
        best = best_baseline(entry)
        rows.append([f"`{name}`", f"{entry['inputs']:,}", accuracy_text(free_point(entry)),
                     percent(entry["dense"]["accuracy"]), f"{percent(best[1])} ({best[0]})" if best else "–",
                     percent(entry["free"]["density"]), count_text(entry["free"]["edges"])])
    return table(["model", "test inputs", "accuracy", "over all pairs", "baseline", "mean density", "mean edges"], rows)


def verdict(met):
    return "met" if met else "**missed**"


def targets(models):
    """The requests to each model, and their results."""
    rows = []

    def row(name, what, value, met):
        rows.append([f"`{name}`: {what}", value, verdict(met)])

    measured = {n: models[n] for n in NAMES if n in models and "skipped" not in models[n]}
    for name, entry in measured.items():
        accuracy, best = free_point(entry)["accuracy"], best_baseline(entry)
        if name == "duplicates":
            row(name, "≥ 99 % of tokens right", percent(accuracy), accuracy >= 0.99)
        elif name == "sentiment":
            row(name, "≥ 80 % right", percent(accuracy), accuracy >= 0.8)
            if best:
                rows.append([f"`{name}`: better than {best[0]}, a wish", f"{100 * (accuracy - best[1]):+.1f} points",
                             "came true" if accuracy > best[1] else "did not come true"])
        elif best:
            row(name, f"≥ 10 points over {best[0]}", f"{100 * (accuracy - best[1]):+.1f} points",
                accuracy - best[1] >= 0.1)
        if "half" in entry:
            half = entry["half"]
            row(name, "≤ 1 point lost at half of its own edges",
                f"{100 * half['lost']:.1f} ± {100 * half['lost_ci95']:.1f} points", half["lost"] <= TARGET_LOSS)
        ratio = entry["free"].get("adaptivity", 0)
        if "adaptivity" in entry["free"]:
            row(name, "density varies ≥ 3 times as much between inputs as between draws",
                "no draws differ" if ratio is None else f"{ratio:.1f} times",
                ratio is None or ratio >= TARGET_ADAPTIVITY)
    return table(["target", "measured", ""], rows)


def caps(entry):
    points = [("none", free_point(entry)), *((cap_text(row["cap"]), row) for row in entry["caps"])]
    if "half" in entry:
        points.append(("half of its own", entry["half"]))
    rows = []
    for cap, row in points:
        rows.append([cap, accuracy_text(row), percent(row["density"], 2), count_text(row["edges"]),
                     percent(row["capped_share"], 0)])
    rows.append(["dense attention", percent(entry["dense"]["accuracy"]), "100.00 %",
                 count_text(entry["dense"]["edges"]), "–"])
    return table(["cap, share of all pairs", "accuracy", "density used", "edges used", "inputs capped"], rows)


def samples(entry):
    return table(["samples", "accuracy"],
                 [[str(row["samples"]), accuracy_text(row)] for row in entry["free"]["samples"]])


def conditions(entry):
    seeds, text = entry["seeds"], f"{entry['inputs']:,} test inputs ({entry['source']})"
    text += f", seeds {seeds[0]} to {seeds[-1]}; ± is the 95 % confidence interval over the seeds. "
    if "samples" in entry["free"]:      # tokens of one input are not independent
        low, high = entry["dense"]["wilson95"]
        text += (f"The size of the test set leaves open more: the accuracy over all pairs lies between {percent(low)} "
                 f"and {percent(high)} (95 %, Wilson). ")
    return text + f"Measured {entry['date']} on `{entry['device']}` by `{entry['command']}`."


def density(models):
    rows = []
    for name in NAMES:
        entry = models.get(name, {})
        free = entry.get("free", {})
        if "adaptivity" not in free:
            continue
        ratio = free["adaptivity"]
        rows.append([f"`{name}`", percent(free["density"], 2), percent(free["density_min"], 2),
                     percent(free["density_max"], 2), percent(free["between_inputs_sd"], 3),
                     percent(free["within_input_sd"], 3), "–" if ratio is None else f"{ratio:.1f}"])
    return table(["model", "mean density", "lowest", "highest", "sd between inputs", "sd between draws", "ratio"], rows)


def keeps(models):
    """Which edges a cap keeps: a part of each model's rows for every cap."""
    rows, inputs, runs = [], [], []
    for name in NAMES:
        entry = models.get(name, {}).get("keeps")
        if entry is None:
            continue
        for row in entry["rows"]:
            random, probable = row["random"], row["probable"]
            rows.append([f"`{name}`", cap_text(row["cap"]), accuracy_text(random), accuracy_text(probable),
                         count_text(probable["edges"]), percent(probable["capped_share"], 0)])
        inputs.append(f"`{name}` {entry['inputs']:,}")
        runs.append(f"{entry['date']} on `{entry['device']}` with seeds {entry['seeds'][0]} to {entry['seeds'][-1]} by "
                    f"`{entry['command']}`")
    if not rows:
        return "Not measured: run ./dev evaluate."
    heading = ["model", "cap, share of all pairs", "RANDOM", "PROBABLE", "edges used", "inputs capped"]
    return table(heading, rows) + f"\n\nInputs: {', '.join(inputs)}. Measured {'; '.join(dict.fromkeys(runs))}."


def times(entry):
    """Milliseconds: one block of columns per length."""
    if "times" not in entry:
        return "Not measured: longer texts need tiny Shakespeare; `--data` names a folder that has it."
    lengths = list(entry["times"])
    heading = ["attention"]
    for length in lengths:
        heading += [f"{int(length):,} tokens: density", "compute", "speed-up"]
    rows = []
    for mode in entry["times"][lengths[0]]:
        row = [mode]
        for length in lengths:
            here = entry["times"][length][mode]
            row += [percent(here["density"], 2), f"{here['compute_ms']:.1f} ms", f"{here['speedup']:.1f}×"]
        rows.append(row)
    calls = entry["times"][lengths[0]]["dense"]["calls"]
    note = (f"Medians of {calls} calls each (speed-up: of the quotients of neighbours), on {entry['cores']} cores that "
            f"other programs used too (load average {entry['load_average']:.1f}). Measured {entry['date']} on "
            f"`{entry['device']}` by `{entry['command']}`.")
    return table(heading, rows) + "\n\n" + note


def block(name, models):
    """The text of one marked block."""
    if name in ("summary", "targets", "density", "keeps", "ensembles"):
        return {"summary": summary, "targets": targets, "density": density, "keeps": keeps,
                "ensembles": ensemble_tables.summary}[name](models)
    kind, _, what = name.rpartition("-")
    entry = models.get(kind, {"skipped": "run ./dev evaluate"})
    if kind in ensembles.MODELS:
        return ensemble_tables.block(kind, what, entry)
    if "skipped" in entry:
        return skipped(entry)
    if kind in overrides.MODELS:
        return overrides.block(entry)
    return {"caps": caps, "samples": samples, "times": times, "conditions": conditions}[what](entry)


MARKED = re.compile(r"(<!-- evaluate: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def wrapped(text):
    """Lines of at most 120 columns, but for tables."""
    return "\n".join(line if line.startswith("|") else
                     textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))


def fill(text, models):
    """`text` with every marked block replaced; unknown names raise KeyError."""
    return MARKED.sub(lambda m: f"{m[1]}{wrapped(block(m[2], models))}\n{m[3]}", text)
