#!/usr/bin/env python3
"""How time and peak memory of attention grow with the length: growth_bench, and a plot of what it has measured.

    ./dev bench growth [--plot FILE] [--python PYTHON] [--json FILE] [--most N] [flags of growth_bench]

The plot has milliseconds and megabytes by tokens, at 64 edges a row, at 0.25 % of the pairs, and dense; dashed, the claim
that the cost is the number of edges: from 1,024 tokens on in proportion to the edges. PYTHON has Matplotlib.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def plot(rows, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.2))
    kinds = {"64 edges a row": [row for row in rows if row["kind"] == "row"],
             "0.25 % of the pairs": [row for row in rows if row["kind"] == "share"]}
    for axes, value, unit in ((panels[0], "milliseconds", 1.0), (panels[1], "kilobytes", 1 / 1024)):
        for name, found in kinds.items():
            tokens = [row["n"] for row in found]
            edges = [row["density"] * row["n"] ** 2 for row in found]
            line, = axes.plot(tokens, [row[value] * unit for row in found], "o-", label=name)
            axes.plot(tokens, [found[0][value] * unit * count / edges[0] for count in edges], "--", color=line.get_color(),
                      label=f"{name}, in proportion to the edges")
        axes.set(xscale="log", yscale="log", xlabel="tokens")
    dense = [row for row in kinds["64 edges a row"] if row["dense_milliseconds"] > 0.0]
    panels[0].plot([row["n"] for row in dense], [row["dense_milliseconds"] for row in dense], "s-", color="grey",
                   label="dense")
    panels[0].set(ylabel="milliseconds of CPU time", title="one head of 64 columns, drawing included")
    panels[1].set(ylabel="MB above the inputs", title="peak memory")
    panels[0].legend(fontsize="x-small", loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def read(path):
    rows = json.loads(pathlib.Path(path).read_text())["rows"]
    for index, row in enumerate(rows):  # the lengths of one kind, then those of the other
        row["kind"] = "row" if index < len(rows) // 2 else "share"
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the program growth_bench")
    parser.add_argument("--python", default=sys.executable, help="a Python with Matplotlib, for --plot")
    parser.add_argument("--plot", help="draw to this file")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--draw", help=argparse.SUPPRESS)  # rows to draw, in the Python with Matplotlib
    args, flags = parser.parse_known_args()
    if args.draw:
        plot(read(args.draw), args.plot)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = args.json or f"{folder}/growth.json"
        ended = subprocess.run([args.bench, "--json", path, *flags], check=False).returncode
        if ended == 0 and args.plot:
            ended = subprocess.run([args.python, __file__, "--bench", args.bench, "--draw", path, "--plot", args.plot],
                                   check=False).returncode
    return ended


if __name__ == "__main__":
    sys.exit(main())
