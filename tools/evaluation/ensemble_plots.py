"""The plots of the models of SSA and blocks, made of results.json."""
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from evaluation.ensemble_tables import TITLES
from evaluation.ensembles import VARIANTS
from evaluation.plots import COLOUR, GREY, SECOND, STYLE, percents, save

COLOURS = {"as bundled": COLOUR, "dense": GREY, "tuned": SECOND}


def curve(axes, rows, x, colour, label):
    axes.errorbar([r[x] for r in rows], [r["score"] for r in rows], [r["ci95"] for r in rows], color=colour,
                  marker="o", capsize=3, label=label)


def caps_panel(axes, entry):
    rows = [row for row in entry["caps"] if "refused" not in row]
    curve(axes, rows, "cap", COLOUR, "capped")
    axes.axvline(entry["free"]["density"], color=COLOUR, linestyle=":", label="density without a cap")
    axes.axhline(entry["dense"], color=GREY, linestyle="--", label="dense attention")
    axes.set_xscale("log")
    percents(axes.xaxis, [row["cap"] for row in rows])
    axes.set_xlabel("cap on density (% of all pairs)")


def samples_panel(axes, entry):
    curves = {"as bundled": entry["ensemble"], **entry.get("variants", {})}
    for name, one in curves.items():
        title = VARIANTS.get(name, "SSA, as bundled")
        curve(axes, one["samples"], "samples", COLOURS[name], f"{title}: samples")
        axes.axhline(one["dense"], color=COLOURS[name], linestyle="--", label=f"{title}: over all pairs")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_ticks([row["samples"] for row in entry["ensemble"]["samples"]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("samples averaged")


def model(entry, name, path):
    """The score against the cap, and against samples where something is drawn."""
    with plt.rc_context(STYLE):
        panels = [caps_panel] + ([samples_panel] if "ensemble" in entry else [])
        figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels) + 0.4, 4.8), squeeze=False)
        for one, panel in zip(axes[0], panels):
            panel(one, entry)
            one.set_ylabel(TITLES[entry["metric"]])
            if entry["metric"] == "accuracy":
                percents(one.yaxis)
                one.set_ylabel("accuracy (%)")
            one.set_title(f"{name}: {TITLES[entry['metric']]} against " +
                          ("the edge budget" if panel is caps_panel else "samples"), fontsize=10)
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=1, handlelength=1.8)
        save(figure, path)
