"""How good a model that was trained with dense attention is under what requests put in its place."""
from evaluation import examples as example_files
from evaluation import statistics
from evaluation.markdown import percent, table

# For each model, the caps and flags that `edgewise evaluate` is told; each tuple is a run of its own.
MODELS = {"shakespeare-llama": [("--block_pattern=local", "--block_size=16,32,64"),
                                ("--window_tokens=32,64,128", "--sigma=2"),
                                ("--window_tokens=64", "--sigma=2", "--samples=8"),
                                ("--window_tokens=32,64", "--sigma=2", "--last_layers=2")],
          "review-encoder": [("--block_pattern=local", "--block_size=4,8", "--truncate=tail"),
                             (0.2, 0.1, "--window_tokens=8", "--sigma=4", "--truncate=tail")],
          "review-ranker": [("--block_pattern=local", "--block_size=8,16,32", "--truncate=tail"),
                            ("--window_tokens=16,32", "--sigma=16,32", "--truncate=tail"),
                            ("--keep=8,32", "--truncate=tail"),
                            (0.2, 0.1, "--keep=16", "--truncate=tail"),
                            ("--keep=16", "--samples=8", "--truncate=tail")]}
INPUTS = {"shakespeare-llama": 1, "review-encoder": 1821, "review-ranker": 1821}


def row(setting, characters):
    """A text's score is in nats per character: its first token is given, and its characters count all the same. Pairs,
    which have no characters, have the rank correlation over all seeds."""
    samples = f", {setting['samples']} samples" if setting["samples"] > 1 else ""
    found = {"setting": setting["setting"] + samples, "density": setting["density"], "edges": setting["edges"]}
    if not characters:
        return {**found, "score": setting["measures"]["rank_correlation"]}
    tokens = setting["scored_tokens"] / setting["answered"]
    by_seed = [loss * tokens / characters for loss in setting["quality_by_repeat"]]
    mean, half = statistics.interval(by_seed)
    return {**found, "score": mean, "ci95": half, "by_seed": by_seed}


def evaluate(name, server, folder, inputs, seeds, say):
    """-> {"inputs", "characters" (0: pairs), "tokens", "device", "rows": dense attention, then each other setting}"""
    path = example_files.write(folder / f"{name}-inputs.jsonl", inputs)
    characters = 0 if "value" in inputs[0] else len(inputs[0]["text"])
    rows, found = {}, None
    for flags in MODELS[name]:
        caps = [cap for cap in flags if isinstance(cap, float)]
        found = server.evaluate(name, path, caps, f"--seed={seeds[0]}", f"--repeats={len(seeds)}", *flags[len(caps):])
        for setting in found["settings"]:
            one = row(setting, characters)
            if one["setting"] not in rows:      # each run has dense attention, and every size without a cap
                say(f"{name}: {one['setting']} {one['score']:.4f}, density {one['density']:.3f}")
            rows.setdefault(one["setting"], one)
    return {"inputs": len(inputs), "characters": characters,
            "tokens": found["settings"][0]["scored_tokens"] // len(seeds), "device": found["device"],
            "rows": list(rows.values())}


def block(entry):
    """The table and how it was measured."""
    rows = [[one["setting"], f"{one['score']:.4f}" + (f" ± {one['ci95']:.4f}" if one.get("ci95") else ""),
             percent(one["density"])] for one in entry["rows"]]
    measured = f"Measured {entry['date']} on `{entry['device']}` by `{entry['command']}`."
    seeds = f"seeds {entry['seeds'][0]} to {entry['seeds'][-1]}"
    if not entry["characters"]:
        return table(["attention", "rank correlation", "density"], rows) + (
            f"\n\n{entry['inputs']:,} pairs of test sentences of SST-2, of each once with {seeds}. {measured}")
    return table(["attention", "loss, nats per character", "density"], rows) + (
        f"\n\n{entry['tokens']:,} scored tokens, {entry['characters']:,} characters (the last tenth of tiny "
        f"Shakespeare); {seeds}; ± is the 95 % confidence interval over the seeds, where edges are drawn. {measured}")
