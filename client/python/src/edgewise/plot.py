"""Draws the JSON of `edgewise evaluate` and `edgewise predict`. Needs Matplotlib: pip install edgewise-client[plot].

    edgewise evaluate --model=long --data=long.jsonl --caps=1%,10% --json > budget.json
    python -m edgewise.plot budget.json -o budget.png

    edgewise predict --model=sentiment --text="a warm film" --samples=16 --seed=1 --key_degrees --each_sample --json > answer.json
    edgewise predict --model=sentiment --text="a warm film" --samples=1 --seed=1 --graph --json > graph.json
    python -m edgewise.plot answer.json --graph graph.json --tokens "[CLS] a warm film" -o attention.svg

The file is a PNG, an SVG or a PDF by the end of its name. An evaluation becomes quality and speed against density. An
answer becomes its edges: query by key where it or `--graph` has a graph (of one sample), else the degrees of its keys;
the tokens with most of them; the budget; and each sample's value of the leading label, where the answer has them.
"""

import argparse
import json
import re
import sys

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

MOST_CELLS = 256    # along a side of a head's picture: more positions are binned
MOST_NAMES = 40     # positions that are named along an axis
MOST_KEYS = 10
BLUE, ORANGE, GREY = "#2171b5", "#d55e00", "#6b6b6b"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")    # Okabe and Ito
MARKERS = "o^sp*h"
QUALITIES = {"accuracy": "accuracy", "rank_correlation": "rank correlation", "loss": "loss, nats per token",
             "error": "mean absolute error"}
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
         "legend.frameon": False, "figure.constrained_layout.use": True, "svg.hashsalt": "edgewise"}


PERCENTS = FuncFormatter(lambda share, _: f"{100 * share:.4g} %")


def counted(samples):
    return f"{samples} sample" + "s" * (samples > 1)


def curves(rows):
    """{name: rows by density}: a curve has the settings that differ in the cap alone or, without caps, in the size of
    the override alone. Left out are caps that dropped no edge, and settings that were refused for some input."""
    caps, found = any(row["cap"] is not None for row in rows), {}
    for row in rows:
        if row["dense"] or row["refused"] or (row["cap"] is not None and not row["capped"]):
            continue
        name = "caps" if caps else "own attention"
        if row["override"] is not None:
            name = row["setting"].split(", cap ")[0] if caps else re.sub(r"( of)? [\d.]+", "", row["setting"])
        found.setdefault(f"{name}, {counted(row['samples'])}", []).append(row)
    return {name: sorted(rows, key=lambda row: row["density"]) for name, rows in found.items()}


def draw_curves(axes, found, dense, key):
    axes.axhline(dense[key], color=GREY, linestyle="--", linewidth=1.2)
    axes.plot([1], [dense[key]], "s", color=GREY, label="dense attention")
    for number, (name, rows) in enumerate(found.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot([row["density"] for row in rows], [row[key] for row in rows], color=colour, label=name, marker=marker)
        free = [row for row in rows if row["cap"] is None]
        axes.plot([row["density"] for row in free], [row[key] for row in free], linestyle="", color=colour,
                  marker=marker, markerfacecolor="white", label="no cap" if number == 0 and len(free) < len(rows) else None)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(PERCENTS)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)


def evaluation(document):
    """`edgewise evaluate --json` -> a figure of quality and speed against density"""
    rows = document["settings"]
    found, known = curves(rows), all(row["quality"] is not None for row in rows if not row["refused"])
    panels = [("quality", QUALITIES.get(document["measure"], ""))] if known else []
    panels.append(("speed", "speed: dense time / time, median"))
    figure = Figure(figsize=(7.6, 0.8 + 2.9 * len(panels)))
    for axes, (key, title) in zip(figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0], panels):
        draw_curves(axes, found, rows[0], key)
        axes.set_ylabel(title)
        if title != "rank correlation":
            axes.set_ylim(bottom=0)
        if title == "accuracy":
            axes.yaxis.set_major_formatter(PERCENTS)
    axes.set_xlabel("density: share of all pairs that were attended to, mean")
    figure.axes[0].legend(loc="lower right", fontsize=8)
    figure.suptitle(f"{document['model']}: what a budget buys\n{document['data']}, {rows[0]['answered']} answers a point, "
                    f"on {document['device']}", fontsize=10)
    return figure


def head_cells(graph, degrees, samples):
    """One head -> (what a cell says, cells [rows, columns]); with a graph query by key, else one row of keys."""
    if graph is None:
        return "edges of a key, mean", np.array([degrees["key_degrees"]], float) / samples
    offsets, keys = np.array(graph["row_offsets"]), np.array(graph["keys"], int)
    positions = len(offsets) - 1
    queries, bins = np.repeat(np.arange(positions), np.diff(offsets)), min(positions, MOST_CELLS)
    cells = np.zeros((bins, bins))
    weights = np.array(graph["weights"]) if bins == positions else np.full(len(keys), (bins / positions) ** 2)
    np.add.at(cells, (queries * bins // positions, keys * bins // positions), weights)
    return "attention weight" if bins == positions else "share of a cell's pairs with an edge", cells


def key_shares(graphs, heads, names):
    """-> [(name, share)]: the share of all attention weight (without graphs: of all edges) that goes to each key, equal
    names together"""
    if graphs:
        degrees = [np.bincount(np.array(head["keys"], int), np.array(head["weights"]), len(names)) for head in graphs]
    else:
        degrees = [np.array(head["key_degrees"], float) for head in heads]
    total, shares = max(sum(map(np.sum, degrees)), 1e-12), {}
    for name, share in zip(names, sum(degrees) / total):
        shares[name] = shares.get(name, 0) + share
    return sorted(shares.items(), key=lambda item: -item[1])[:MOST_KEYS]


def draw_heads(figure, layers, graphs, samples, names):
    """layers: key degrees or edges of [layers][heads]; graphs: the same of graphs, or empty"""
    panels = figure.subplots(len(layers), len(layers[0]), squeeze=False)
    drawn = [[head_cells(graphs[l][h] if graphs else None, head, samples) for h, head in enumerate(layer)]
             for l, layer in enumerate(layers)]
    largest = max(cells.max() for layer in drawn for _, cells in layer)
    cells_colours = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.2, 1, 256)))    # no edge alone is white
    for (l, h), axes in np.ndenumerate(panels):
        title, cells = drawn[l][h]
        image = axes.imshow(np.ma.masked_equal(cells, 0), cmap=cells_colours, vmin=0, vmax=largest or 1, aspect="auto",
                            interpolation="nearest")
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_title(f"layer {l}, head {h}: {round(layers[l][h]['edges'], 1):g} edges", fontsize=9)
        named = len(cells[0]) == len(names) <= MOST_NAMES
        below, beside = (names if named and shown else [] for shown in (l == len(layers) - 1, graphs and h == 0))
        axes.set_xticks(range(len(below)), below, rotation=90)
        axes.set_yticks(range(len(beside)), beside)
    figure.colorbar(image, ax=panels, label=title, shrink=0.6)


def draw_spread(axes, prediction):
    """Each sample's value of the leading label, or of a regression."""
    label = prediction["label_id"]
    values = [sample["values"][0] if sample["values"] else sample["probabilities"][label]
              for sample in prediction["sample_outputs"]]
    axes.hist(values, bins=min(24, len(values)), range=None if prediction["values"] else (0, 1), color=BLUE)
    axes.axvline(np.mean(values), color=ORANGE)
    axes.set_title(f"{prediction['label'] or 'value'} in each sample: {np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}",
                   loc="left")


def answer(document, tokens=(), graph=None):
    """`edgewise predict --json` of one input, with --key_degrees or --graph -> a figure of its edges; graph: another
    answer, which has one; tokens: their names, by position"""
    prediction = document["predictions"][0]
    found = (graph["predictions"][0] if graph else prediction).get("graph")
    graphs = [layer["heads"] for layer in found["layers"]] if found else []
    edges = prediction["edges"]
    layers = [[{"edges": len(head["keys"])} for head in layer] for layer in graphs] or \
        [layer["heads"] for layer in edges["layers"]]
    if not layers:
        raise ValueError("the answer has no edges to draw: ask with --key_degrees, or --samples=1 --graph")
    positions = max(len(head["row_offsets"]) - 1 for head in graphs[0]) if graphs else len(layers[0][0]["key_degrees"])
    if tokens and len(tokens) != positions:
        raise ValueError(f"--tokens has {len(tokens)} names; the answer has {positions} positions")
    names = list(tokens) or [str(position) for position in range(positions)]
    figure = Figure(figsize=(3.2 * len(layers[0]) + 4.2, max(3.0 * len(layers) + 0.8, 4.4)))
    left, right = figure.subfigures(1, 2, width_ratios=(3.2 * len(layers[0]), 4.2))
    draw_heads(left, layers, graphs, prediction["samples"], names)
    several = len(prediction["sample_outputs"]) > 1 and bool(prediction["label"] or prediction["values"])
    bars, budget, *spread = right.subplots(2 + several, 1, gridspec_kw={"height_ratios": [4, 1, 2][:2 + several]})
    shares = key_shares([head for layer in graphs for head in layer], [head for layer in layers for head in layer], names)
    bars.barh([name.replace("$", r"\$") for name, _ in shares], [share for _, share in shares], color=BLUE)
    bars.invert_yaxis()
    bars.xaxis.set_major_formatter(PERCENTS)
    bars.set_title("keys with the most attention" if graphs else "keys with the most edges", loc="left")
    cap = int(edges["budget"])
    budget.barh([0], [edges["edges"]], color=BLUE)
    if cap:
        budget.axvline(cap, color=ORANGE)
    budget.set_xlim(0, 1.15 * max(cap, edges["edges"]) if cap else int(edges["pairs"]))
    budget.set_yticks([])
    budget.set_title(f"{edges['edges']:,.1f} of {int(edges['pairs']):,} pairs, {100 * edges['density']:.4g} %; "
                     + (f"cap {cap:,}" if cap else "no cap"), loc="left")
    if spread:
        draw_spread(spread[0], prediction)
    note = "; heads are of the first sample" if graphs and prediction["samples"] > 1 else ""
    figure.suptitle(f"Edges in {document['model']}, version {document['version']}: {counted(prediction['samples'])}, "
                    f"seed {document['seed']}{note}", fontsize=11)
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m edgewise.plot", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the JSON; - for standard input")
    parser.add_argument("-o", "--out", required=True, help="FILE.png, .svg or .pdf")
    parser.add_argument("--graph", help="the JSON of the same question with --samples=1 --graph")
    parser.add_argument("--tokens", default="", help="the names of the input's tokens, with blanks between")
    args = parser.parse_args(arguments)
    try:
        with sys.stdin if args.file == "-" else open(args.file, encoding="utf-8") as file:
            document = json.load(file)
        graph = None
        if args.graph:
            with open(args.graph, encoding="utf-8") as file:
                graph = json.load(file)
        with matplotlib.rc_context(STYLE):
            drawn = evaluation(document) if "settings" in document and "measure" in document else \
                answer(document, args.tokens.split(), graph)
            drawn.savefig(args.out, dpi=110, metadata={"Date": None} if args.out.endswith(".svg") else None)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
