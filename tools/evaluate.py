#!/usr/bin/env python3
"""Measures the bundled models through the server: the tables and plots of examples/README.md.

Starts `edgewise-server` on examples/models, asks it through `edgewise evaluate` and, for the edges of single inputs,
`edgewise predict`; writes examples/results.json (raw numbers), examples/plots/*.png and the marked tables of
examples/README.md. Needs NumPy and matplotlib (Debian's).

    ./dev evaluate                          builds first; a part of the test inputs, minutes
    ./dev evaluate --full                   all test inputs
    ./dev evaluate --models listops,long    these only; the others keep their numbers
    ./dev evaluate --models shakespeare-ssa,shakespeare-words    loss against samples and caps; with the entries of
                                            build/train/models, where the recipes left some, as in Figure 7 of the SSA
                                            paper
    ./dev evaluate --models shakespeare-llama,review-encoder,review-ranker   the attention that requests put in place of
                                            their own
    ./dev evaluate --keeps                  the table of which edges a cap keeps alone; all else keeps its numbers
    ./dev evaluate --render                 tables and plots again, from results.json
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time

from evaluation import ensembles, examples, measure, overrides, plots, statistics, tables
from evaluation.server import Server

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples"

# Test inputs: what the recipe makes, and how many of them are used without and with --full.
INPUTS = {"duplicates": (500, 40, 200), "sentiment": (1821, 1821, 1821), "long": (100, 48, 100),
          "listops": (1000, 500, 1000)}
SOURCE = {"duplicates": "generated", "sentiment": "SST-2 test split", "long": "generated over tiny Shakespeare",
          "listops": "generated"}
VARIANTS = ROOT / "build" / "train" / "models"     # what the recipes make beside the bundled models
TIMES_LENGTHS = (2047, 4095)    # words; with the CLS token 2,048 and 4,096
TIMES_INPUTS, TIMES_ROUNDS = 4, 8
TIMES_CAPS = (0.1, 0.05, 0.02, 0.01)


# One plot of what a model attends to; the caption in README.md has the command.
PLOTTED = ("sentiment", "a warm , funny and beautifully acted film that never wastes a minute", 16)


def say(text):
    print(f"[evaluate] {text}", file=sys.stderr, flush=True)


def time_long(server, folder, data):
    """Milliseconds of `long`, dense against drawn against capped, at each length -> {tokens: {mode: ...}}"""
    result = {}
    for words in TIMES_LENGTHS:
        inputs = examples.make("long", folder, data, TIMES_INPUTS, TIMES_INPUTS, ("--length", str(words)))
        sweep = measure.Sweep(server, "long", inputs, folder, [1], say)
        half = sweep.ask(())["settings"][1]["density"] / 2
        caps = {"half of its own": half, **{f"cap {100 * cap:g} %": cap for cap in TIMES_CAPS}}
        result[str(words + 1)] = sweep.times(caps, TIMES_ROUNDS, TIMES_INPUTS)
        say(f"long: {words + 1} tokens, " +
            ", ".join(f"{mode} {t['compute_ms']:.1f} ms" for mode, t in result[str(words + 1)].items()))
    return result


def begin(name, server, folder, args):
    """Raises examples.Missing."""
    made, some, everything = INPUTS[name]
    inputs = examples.make(name, folder, args.data, made, everything if args.full else some)
    return measure.Sweep(server, name, inputs, folder, list(range(1, args.seeds + 1)), say)


def keeps(sweep, device, command):
    """-> the part of a model's entry that says which edges a cap keeps"""
    return {"rows": sweep.keeps(), "inputs": len(sweep.examples), "seeds": sweep.seeds, "device": device,
            "date": datetime.date.today().isoformat(), "command": command}


def evaluate(name, server, folder, args, command):
    """-> the model's entry in results.json"""
    start = time.monotonic()
    try:
        sweep = begin(name, server, folder, args)
    except examples.Missing as missing:
        return {"skipped": str(missing)}
    result = measure.tokens(sweep) if name == "duplicates" else measure.classification(sweep)
    if name == "long":
        try:
            result["times"] = time_long(server, folder, args.data)
        except examples.Missing as missing:
            say(f"long: no times, {missing}")
    result["keeps"] = keeps(sweep, result["dense"]["device"], command)
    trained = ROOT / "tools" / "train" / "results" / f"{name}.json"
    return {"inputs": len(sweep.examples), "inputs_made": INPUTS[name][0], "source": SOURCE[name],
            "seeds": sweep.seeds, "date": datetime.date.today().isoformat(), "command": command,
            "device": result["dense"].pop("device"),
            "cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2),
            "seconds": round(time.monotonic() - start, 1),
            "baselines": statistics.baselines(json.loads(trained.read_text())) if trained.exists() else {}, **result}


def evaluate_ensembles(name, sources, folder, args, command):
    """-> the entry in results.json of a model of SSA or blocks. sources: servers of the bundled models, and of VARIANTS"""
    metric, made, some, everything, few = ensembles.MODELS[name]
    start = time.monotonic()
    try:
        whole = examples.make(name, folder, args.data, made, everything)
    except examples.Missing as missing:
        return {"skipped": str(missing)}
    inputs = whole if args.full else [whole[i] for i in statistics.evenly(len(whole), some)]
    seeds = list(range(1, args.seeds + 1)) if few else [1]      # blocks are not drawn
    sweep = lambda source, model: ensembles.Sweep(source, model, metric, inputs, few, seeds, folder, say)
    result = ensembles.evaluate(sweep(sources[0], name))
    if metric == "loss":
        result["whole"] = ensembles.Sweep(sources[0], name, metric, whole, 0, [1], folder, say).whole()
    for source in sources[1:]:
        found = [kind for kind in ensembles.VARIANTS if f"{name}-{kind}" in source.models()]
        result["variants"] = {kind: sweep(source, f"{name}-{kind}").ensemble() for kind in found}
    return {"inputs": len(inputs), "inputs_made": made,
            "source": ensembles.SOURCE.get(name, "pieces of the last tenth of tiny Shakespeare"), "seeds": seeds,
            "date": datetime.date.today().isoformat(), "command": command, "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 2), "seconds": round(time.monotonic() - start, 1), **result}


def evaluate_overrides(name, server, folder, args, command):
    """-> the entry in results.json of a model that was trained with dense attention"""
    start = time.monotonic()
    try:
        inputs = examples.make(name, folder, args.data, overrides.INPUTS[name], overrides.INPUTS[name])
    except examples.Missing as missing:
        return {"skipped": str(missing)}
    seeds = list(range(1, args.seeds + 1))
    found = overrides.evaluate(name, server, pathlib.Path(folder), inputs, seeds, say)
    return {"seeds": seeds, "date": datetime.date.today().isoformat(), "command": command, "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 2), "seconds": round(time.monotonic() - start, 1), **found}


def fill(names, models, server, measured):
    """Fills the entries of `names` with what measured(name) gives."""
    ready = server.models()
    for name in names:
        models[name] = rounded(measured(name)) if name in ready else \
            {"skipped": f"examples/models/{name} is not there or does not load"}
        say(f"{name}: {models[name].get('skipped', 'done')}")


def with_ensembles(names, models, server, folder, args, command):
    """Fills the entries of `names`."""
    with contextlib.ExitStack() as stack:
        sources = [server]
        if VARIANTS.is_dir():
            (pathlib.Path(folder) / "variants").mkdir()
            sources.append(stack.enter_context(Server(args.bin, VARIANTS, pathlib.Path(folder) / "variants")))
        fill(names, models, server, lambda name: evaluate_ensembles(name, sources, folder, args, command))


def evaluate_all(names, models, server, folder, args, command):
    """Fills the entries of `names`, and of the ensembles that were asked for."""
    fill(names, models, server, lambda name: evaluate(name, server, folder, args, command))
    if PLOTTED[0] in names:
        (FOLDER / "plots").mkdir(exist_ok=True)
        server.plot(*PLOTTED, folder, FOLDER / "plots" / f"{PLOTTED[0]}-attention.png")
    fill([name for name in overrides.MODELS if name in args.models.split(",")], models, server,
         lambda name: evaluate_overrides(name, server, folder, args, command))
    if drawn := [name for name in ensembles.MODELS if name in args.models.split(",")]:
        with_ensembles(drawn, models, server, folder, args, command)


def rounded(value):
    """Numbers to nine digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def render(models):
    readme = FOLDER / "README.md"
    readme.write_text(tables.fill(readme.read_text(encoding="utf-8"), models), encoding="utf-8")
    for name in plots.draw(models, FOLDER / "plots"):
        say(f"examples/plots/{name}")


def main():
    known = (*tables.NAMES, *ensembles.MODELS, *overrides.MODELS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "bin"), help="folder of edgewise-server and edgewise")
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data"),
                        help="folder with sst2/test.tsv and tinyshakespeare.txt")
    parser.add_argument("--models", default=",".join(known))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="all test inputs")
    parser.add_argument("--keeps", action="store_true", help="measure only which edges a cap keeps")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    args = parser.parse_args()
    names = [name for name in tables.NAMES if name in args.models.split(",")]
    if unknown := set(args.models.split(",")) - set(known):
        parser.error(f"--models: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if args.seeds < 2:
        parser.error("--seeds: an interval needs at least 2")

    path = FOLDER / "results.json"
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    if not args.render:
        command = "./dev evaluate" + (" --keeps" if args.keeps else "") + (" --full" if args.full else "") + \
            (f" --seeds {args.seeds}" if args.seeds != 5 else "")
        with tempfile.TemporaryDirectory() as folder, Server(args.bin, FOLDER / "models", folder) as server:
            if args.keeps:
                for name in names:
                    sweep = begin(name, server, folder, args)
                    models[name]["keeps"] = rounded(keeps(sweep, sweep.ask(())["device"], command))
            else:
                evaluate_all(names, models, server, folder, args, command)
        models = {name: models[name] for name in known if name in models}
        path.write_text(json.dumps({"models": models}, indent=1) + "\n")
    render(models)


if __name__ == "__main__":
    main()
