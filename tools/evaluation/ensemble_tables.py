"""The tables of the models of SSA and blocks in examples/README.md. Pure: text in, text out."""
from evaluation.ensembles import MODELS, VARIANTS
from evaluation.markdown import cap_text, count_text, percent, skipped, table

TITLES = {"loss": "loss, nats", "accuracy": "accuracy", "error": "mean absolute error"}


def score_text(metric, value, half=None):
    if metric == "accuracy":
        return f"{100 * value:.1f} %" if half is None else f"{100 * value:.1f} ± {100 * half:.1f} %"
    return f"{value:.4f}" if half is None else f"{value:.4f} ± {half:.4f}"


def row_text(metric, row):
    return score_text(metric, row["score"], row["ci95"] if len(row["by_seed"]) > 1 else None)


def best_of(entry):
    """The row of most samples, or None"""
    return entry["ensemble"]["samples"][-1] if "ensemble" in entry else None


def summary(models):
    rows = []
    for name in MODELS:
        entry = models.get(name)
        if entry is None or "skipped" in entry:
            rows.append([f"`{name}`", "not measured", "", "", "", ""])
            continue
        metric, best = entry["metric"], best_of(entry)
        whole = entry.get("whole")      # language models: on all of the held-out text
        one = score_text(metric, whole["one_sample"]) if whole else row_text(metric, entry["free"])
        rows.append([f"`{name}`", TITLES[metric], score_text(metric, (whole or entry)["dense"]), one,
                     f"{row_text(metric, best)} ({best['samples']})" if best else "–",
                     percent(entry["free"]["density"])])
    return table(["model", "measured", "over all pairs", "one sample", "most samples", "density"], rows)


def caps(entry):
    metric, rows = entry["metric"], []
    for row in [{**entry["free"], "cap": None}, *entry["caps"]]:
        cap = "none" if row["cap"] is None else cap_text(row["cap"])
        rows.append([cap, "refused: below the least possible", "–", "–", "–"] if "refused" in row else
                    [cap, row_text(metric, row), percent(row["density"], 2), count_text(row["edges"]),
                     percent(row["capped_share"], 0)])
    rows.append(["dense attention", score_text(metric, entry["dense"]), "100.00 %", "–", "–"])
    return table(["cap, share of all pairs", TITLES[metric], "density used", "edges used", "inputs capped"], rows)


def samples(entry):
    """One column for the bundled model, one for each variant that was there."""
    curves = {"as bundled": entry["ensemble"]} if "ensemble" in entry else {}
    curves.update({VARIANTS[name]: curve for name, curve in entry.get("variants", {}).items()})
    if not curves:
        return "Nothing is drawn: every sample is the same."
    metric, sizes = entry["metric"], [row["samples"] for row in next(iter(curves.values()))["samples"]]
    rows = [[str(size), *(row_text(metric, curve["samples"][i]) for curve in curves.values())]
            for i, size in enumerate(sizes)]
    rows.append(["dense attention", *(score_text(metric, curve["dense"]) for curve in curves.values())])
    return table(["samples", *(f"{TITLES[metric]}, {title}" for title in curves)], rows)


def conditions(entry):
    seeds = entry["seeds"]
    text = f"{entry['inputs']:,} test inputs ({entry['source']})"
    if entry["tokens"]:
        text += f", {entry['tokens']:,} scored tokens; in the summary all {entry['whole']['tokens']:,}"
    if "ensemble" in entry and entry["ensemble"]["inputs"] != entry["inputs"]:
        text += f"; for the table of samples the first {entry['ensemble']['inputs']} of them"
    if len(seeds) > 1:
        text += f"; seeds {seeds[0]} to {seeds[-1]}; ± is the 95 % confidence interval over the seeds"
    return f"{text}. Measured {entry['date']} on `{entry['device']}` by `{entry['command']}`."


def block(name, what, entry):
    if "skipped" in entry:
        return skipped(entry)
    if what == "conditions":
        return f"{conditions(entry)}\n\n![Against the edge budget and against samples](plots/{name}.png)"
    return {"caps": caps, "samples": samples}[what](entry)
