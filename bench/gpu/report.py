"""Rows, table, JSON and plot of the GPU benchmark."""

import json
import os

# The project's goals for its GPU backend: peer, precision of ours, densities, most batch x heads, least ratio of times.
GOALS = [
    ("authors_fp32", "fp32", (0.01, 0.025, 0.10, 0.25, 1.0), 64, 25.0),
    ("cusparse_fp32", "fp32", (0.01, 0.025, 0.10, 0.25), 64, 5.0),
    ("flex_bf16", "bf16", (0.025,), 64, 3.0),
    ("sdpa_flash_bf16", "bf16", (0.025,), 8, 1.3),
    ("sdpa_flash_bf16", "bf16", (1.0,), 8, 0.9),
]
SHOWN = ["authors_fp32", "cusparse_fp32", "flex_bf16", "sdpa_flash_bf16", "sdpa_cudnn_bf16", "sdpa_efficient_fp32"]


def make_row(
    bench, shape, rank, target, edges, precision, times, peers, failures, checks, peak_bytes, peer_peaks, block_mask_ms
):
    ms = times.get(f"ours_{precision}")
    rows, width = shape.batch * shape.n, shape.heads * shape.head_dim
    least_bytes = 4 * rows * (4 * width + 2 * shape.heads * (rank + 1))  # q, k, v, output, memberships and their bounds, once
    share = {}
    if ms:
        share = {
            "of_copy_bandwidth": least_bytes / (ms / 1e3) / bench.ceilings["copy_bytes_per_second"],
            "of_matmul_rate": 4 * edges * shape.head_dim / (ms / 1e3) / bench.ceilings[f"matmul_{precision}_flops"],
        }
    dense_ms = times.get(f"dense_{precision}")
    if dense_ms:
        share["dense_of_matmul_rate"] = (
            4 * shape.pairs * shape.head_dim / (dense_ms / 1e3) / bench.ceilings[f"matmul_{precision}_flops"]
        )
    return {
        "device": bench.device_name, "date": bench.date, "command": bench.command, "n": shape.n, "d": shape.head_dim,
        "batch_heads": shape.batch_heads, "rank": rank, "density": edges / shape.pairs, "target_density": target,
        "precision": precision, "edges": edges, "ours_ms": ms, "ours_given_ms": times.get(f"given_{precision}"),
        "ours_dense_ms": dense_ms, "membership_ms": times.get(f"members_{precision}"), "peers": peers,
        "ratios": {name: value / ms for name, value in peers.items()} if ms else {}, "failures": failures,
        "error": checks.get(f"ours_{precision}"), "errors": checks, "peak_bytes": peak_bytes,
        "peer_peak_bytes": peer_peaks, "flex_block_mask_ms": block_mask_ms, "share": share,
    }  # fmt: skip


def print_head(bench):
    print(f"{bench.device_name}, {bench.date}, PyTorch {bench.torch}: {bench.command}")
    print(", ".join(f"{name} {value:.3g}" for name, value in bench.ceilings.items()))
    print("times in ms; then the times of peers over ours\n")
    names = ["n", "d", "bxh", "rank", "density", "prec", "ours", "given", "dense", "members", "error"]
    print("".join(f"{name:>9}" for name in names) + "".join(f"{name.replace('sdpa_', ''):>16}" for name in SHOWN))


def cell(value, form):
    return "-" if value is None else format(value, form)


def print_row(row):
    cells = [str(row[name]) for name in ("n", "d", "batch_heads", "rank")] + [f"{100 * row['density']:.2f}%", row["precision"]]
    cells += [cell(row[name], ".4f") for name in ("ours_ms", "ours_given_ms", "ours_dense_ms", "membership_ms")]
    cells.append(cell(row["error"], ".1e"))
    print(
        "".join(f"{text:>9}" for text in cells) + "".join(f"{cell(row['ratios'].get(name), '.2f'):>16}" for name in SHOWN),
        flush=True,
    )
    if row["failures"] and row["precision"] == "fp32":
        for name, reason in row["failures"].items():
            print(f"          without {name}: {reason}")


def print_goals(rows):
    """The worst ratio of each goal, and where."""
    print("\nworst ratios beside what is wanted")
    for peer, precision, densities, most, least in GOALS:
        found = [
            (row["ratios"][peer], row)
            for row in rows
            if row["precision"] == precision
            and row["target_density"] in densities
            and row["batch_heads"] <= most
            and peer in row["ratios"]
        ]
        where = "not measured"
        if found:
            ratio, row = min(found, key=lambda pair: pair[0])
            met = sum(pair[0] >= least for pair in found)
            where = (
                f"{ratio:.2f} at n={row['n']} d={row['d']} batch x heads={row['batch_heads']} "
                f"density={row['target_density']:g}; met in {met} of {len(found)}"
            )
        shown = ", ".join(f"{100 * density:g}" for density in densities)
        print(f"  {peer:<16} {precision}  {shown:>18} %, batch x heads <= {most:<2}: >= {least:<4}  {where}")


def write_json(path, bench):
    """Replaces the file at once: a program that is ended meanwhile leaves the one before."""
    if not path:
        return
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"device": bench.device_name, "date": bench.date, "command": bench.command,
                   "torch": bench.torch, "rounds": bench.args.rounds, "ceilings": bench.ceilings, "rows": bench.rows}, file, indent=1)  # fmt: skip
        file.write("\n")
    os.replace(path + ".part", path)


def plot(path, bench):
    if not path or not bench.rows:
        return
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not there")
        return
    shapes = sorted({(row["d"], row["batch_heads"], row["n"]) for row in bench.rows})
    columns = min(3, len(shapes))
    lines = (len(shapes) + columns - 1) // columns
    figure, axes = pyplot.subplots(lines, columns, figsize=(5 * columns, 3.6 * lines), squeeze=False)
    for axis in axes.flat[len(shapes) :]:
        axis.set_visible(False)
    for axis, (d, batch_heads, n) in zip(axes.flat, shapes):
        of_shape = [row for row in bench.rows if (row["d"], row["batch_heads"], row["n"]) == (d, batch_heads, n)]
        series = {}
        for row in of_shape:
            percent = 100 * row["density"]
            series.setdefault(f"ours {row['precision']}", []).append((percent, row["ours_ms"]))
            if row["precision"] == of_shape[0]["precision"]:
                for name in SHOWN:
                    series.setdefault(name.replace("_", " "), []).append((percent, row["peers"].get(name)))
        for name, points in series.items():
            points = [point for point in points if point[1] is not None]
            if points:
                style = "o-" if name.startswith("ours") else ".--"
                axis.plot(*zip(*points), style, label=name, linewidth=2 if name.startswith("ours") else 1)
        axis.set(xscale="log", yscale="log", title=f"n = {n}, d = {d}, batch x heads = {batch_heads}")
        axis.set(xlabel="density, %", ylabel="ms")
        axis.grid(True, alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"{bench.device_name}, {bench.date}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")
