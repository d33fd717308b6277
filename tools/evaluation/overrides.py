"""Loss of a language model that was trained with dense attention, under what requests put in its place."""
from evaluation import examples as example_files
from evaluation import statistics
from evaluation.markdown import percent, table

# Of each model, what `edgewise evaluate` is told beside the model and the text; each is a run of its own.
MODELS = {"shakespeare-llama": [("--block_pattern=local", "--block_size=16,32,64"),
                                ("--window_tokens=32,64,128", "--sigma=2"),
                                ("--window_tokens=64", "--sigma=2", "--samples=8"),
                                ("--window_tokens=32,64", "--sigma=2", "--last_layers=2")]}
SOURCE = "the last tenth of tiny Shakespeare"


def row(setting, characters):
    """loss: nats per character. A text's first token is given, and its characters count all the same."""
    repeats = setting["answered"]
    tokens = setting["scored_tokens"] / repeats
    by_seed = [loss * tokens / characters for loss in setting["quality_by_repeat"]]
    mean, half = statistics.interval(by_seed)
    samples = f", {setting['samples']} samples" if setting["samples"] > 1 else ""
    return {"setting": setting["setting"] + samples, "score": mean, "ci95": half, "by_seed": by_seed,
            "density": setting["density"], "edges": setting["edges"]}


def evaluate(name, server, folder, text, seeds, say):
    """-> {"characters", "tokens", "device", "rows": dense attention, then every setting of MODELS}"""
    path = example_files.write(folder / f"{name}-text.jsonl", [{"text": text}])
    rows, found = [], None
    for flags in MODELS[name]:
        found = server.evaluate(name, path, (), f"--seed={seeds[0]}", f"--repeats={len(seeds)}", *flags)
        settings = found["settings"]
        for setting in settings if not rows else settings[1:]:
            rows.append(row(setting, len(text)))
            say(f"{name}: {rows[-1]['setting']} loss {rows[-1]['score']:.4f}, density {rows[-1]['density']:.3f}")
    return {"characters": len(text), "tokens": found["settings"][0]["scored_tokens"] // len(seeds),
            "device": found["device"], "rows": rows}


def block(entry):
    """The table and how it was measured."""
    rows = [[one["setting"], f"{one['score']:.4f}" + (f" ± {one['ci95']:.4f}" if len(set(one["by_seed"])) > 1 else ""),
             percent(one["density"])] for one in entry["rows"]]
    return table(["attention", "loss, nats per character", "density"], rows) + (
        f"\n\n{entry['tokens']:,} scored tokens, {entry['characters']:,} characters ({SOURCE}); seeds "
        f"{entry['seeds'][0]} to {entry['seeds'][-1]}; ± is the 95 % confidence interval over the seeds, where edges are "
        f"drawn. Measured {entry['date']} on `{entry['device']}` by `{entry['command']}`.")
