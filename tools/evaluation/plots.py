"""The plots of examples/plots, made of results.json."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator  # noqa: E402

from evaluation import ensembles, overrides  # noqa: E402
from evaluation.ensemble_tables import TITLES  # noqa: E402
from evaluation.ensembles import VARIANTS  # noqa: E402
from evaluation.tables import best_baseline  # noqa: E402

COLOUR, SECOND, THIRD, GREY = "#1b6ca8", "#c4572d", "#3a7d34", "#666666"
COLOURS = {"as bundled": COLOUR, "dense": GREY, "tuned": SECOND}
LEAST_RANGE = 0.04     # of accuracy, so that noise looks like noise
STYLE = {"figure.dpi": 110, "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
         "axes.grid": True, "grid.alpha": 0.3, "legend.frameon": False, "legend.fontsize": 9}


def percents(axis, values=None):
    """Ticks of a share, as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    if values is not None:
        axis.set_ticks(values)
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def caps_panel(axes, entry):
    caps = [row["cap"] for row in entry["caps"]]
    axes.errorbar(caps, [row["accuracy"] for row in entry["caps"]], [row["ci95"] for row in entry["caps"]],
                  color=COLOUR, marker="o", capsize=3, label="capped")
    if "half" in entry:
        half = entry["half"]
        axes.errorbar([half["density"]], [half["accuracy"]], [half["ci95"]], color=SECOND, marker="D", capsize=3,
                      linestyle="none", label="half of each input's own edges")
    axes.axvline(entry["free"]["density"], color=COLOUR, linestyle=":", label="mean density without a cap")
    lines(axes, entry)
    axes.set_xscale("log")
    percents(axes.xaxis, caps)
    axes.set_xlabel("cap on density (% of all pairs)")
    axes.set_ylabel("accuracy (%)")
    percents(axes.yaxis)


def lines(axes, entry):
    axes.axhline(entry["dense"]["accuracy"], color=GREY, linestyle="--", label="dense attention")
    best = best_baseline(entry)
    if best:
        axes.axhline(best[1], color=THIRD, linestyle="-.", label=f"baseline: {best[0]}")


def model(entry, name, path):
    """Accuracy against the cap, and against samples where there are several."""
    with plt.rc_context(STYLE):
        several = "samples" in entry["free"]
        figure, axes = plt.subplots(1, 2 if several else 1, figsize=(10 if several else 5.8, 4.8), squeeze=False)
        caps_panel(axes[0][0], entry)
        axes[0][0].set_title(f"{name}: accuracy against the edge budget", fontsize=10)
        if several:
            rows = entry["free"]["samples"]
            right = axes[0][1]
            right.errorbar([r["samples"] for r in rows], [r["accuracy"] for r in rows], [r["ci95"] for r in rows],
                           color=COLOUR, marker="o", capsize=3, label="without a cap")
            right.axhline(entry["dense"]["accuracy"], color=GREY, linestyle="--", label="dense attention")
            right.set_xscale("log", base=2)
            right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            right.xaxis.set_ticks([r["samples"] for r in rows])
            right.xaxis.set_minor_locator(NullLocator())
            percents(right.yaxis)
            right.set_xlabel("samples averaged")
            right.set_ylabel("accuracy (%)")
            right.set_title(f"{name}: accuracy against samples", fontsize=10)
        for one in axes[0]:
            low, high = one.get_ylim()
            if high - low < LEAST_RANGE:
                low, high = (low + high - LEAST_RANGE) / 2, (low + high + LEAST_RANGE) / 2
            one.set_ylim(low, min(high, 1.005))
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2 if several else 1, columnspacing=1.0,
                       handlelength=1.8)
        save(figure, path)


def curve(axes, rows, x, colour, label):
    axes.errorbar([r[x] for r in rows], [r["score"] for r in rows], [r["ci95"] for r in rows], color=colour,
                  marker="o", capsize=3, label=label)


def ensemble_caps_panel(axes, entry):
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


def ensemble_model(entry, name, path):
    """Models of SSA and blocks: the score against the cap, and against samples where something is drawn."""
    with plt.rc_context(STYLE):
        panels = [ensemble_caps_panel] + ([samples_panel] if "ensemble" in entry else [])
        figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels) + 0.4, 4.8), squeeze=False)
        for one, panel in zip(axes[0], panels):
            panel(one, entry)
            one.set_ylabel(TITLES[entry["metric"]])
            if entry["metric"] == "accuracy":
                percents(one.yaxis)
                one.set_ylabel("accuracy (%)")
            one.set_title(f"{name}: {TITLES[entry['metric']]} against " +
                          ("the edge budget" if panel is ensemble_caps_panel else "samples"), fontsize=10)
            one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=1, handlelength=1.8)
        save(figure, path)


def density(models, path):
    """Expected density of every input; the bar is one standard deviation of the draw."""
    chosen = {name: entry for name, entry in models.items() if "adaptivity" in entry.get("free", {})}
    if not chosen:
        return False
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(chosen), figsize=(3.6 * len(chosen) + 0.4, 3.6), squeeze=False)
        for panel, (name, entry) in zip(axes[0], chosen.items()):
            free = entry["free"]
            panel.hist(free["density_by_input"], bins=min(30, max(8, entry["inputs"] // 6)), color=COLOUR, alpha=0.85)
            top = panel.get_ylim()[1]
            panel.errorbar([free["density"]], [1.06 * top], xerr=[free["between_inputs_sd"]], color=COLOUR, capsize=4,
                           marker="|", label="± sd between inputs")
            panel.errorbar([free["density"]], [1.14 * top], xerr=[free["within_input_sd"]], color=SECOND, capsize=4,
                           marker="|", label="± sd between draws")
            panel.set_ylim(0, 1.5 * top)
            percents(panel.xaxis)
            panel.set_xlabel("expected density of an input (%)")
            panel.set_ylabel("inputs")
            panel.set_title(name, fontsize=10)
            panel.legend(loc="upper left")
        save(figure, path)
    return True


def times(entry, path):
    """Compute time of `long` against density, dense attention at 100 %."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(entry["times"]), figsize=(4.8 * len(entry["times"]), 3.8), squeeze=False)
        for panel, (length, modes) in zip(axes[0], entry["times"].items()):
            names = list(modes)
            places = range(len(names))
            panel.barh(places, [modes[n]["compute_ms"] for n in names],
                       color=[GREY if n == "dense" else COLOUR for n in names])
            for place, n in zip(places, names):
                panel.text(modes[n]["compute_ms"], place, f" {modes[n]['compute_ms']:.1f} ms", va="center", fontsize=9)
            panel.set_yticks(list(places))
            panel.set_yticklabels([f"{n} ({100 * modes[n]['density']:.1f} %)" for n in names])
            panel.invert_yaxis()
            panel.set_xlim(0, 1.25 * max(m["compute_ms"] for m in modes.values()))
            panel.set_xlabel("compute time of one input (ms, median)")
            panel.set_title(f"long: {int(length):,} tokens", fontsize=10)
            panel.grid(axis="y", visible=False)
        save(figure, path)


def draw(models, folder):
    """-> names of the files written"""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, entry in models.items():
        if "skipped" not in entry and name not in overrides.MODELS:
            (ensemble_model if name in ensembles.MODELS else model)(entry, name, folder / f"{name}.png")
            written.append(f"{name}.png")
            if entry.get("times"):
                times(entry, folder / f"{name}-times.png")
                written.append(f"{name}-times.png")
    if density({n: e for n, e in models.items() if "skipped" not in e}, folder / "density.png"):
        written.append("density.png")
    return written
