#!/usr/bin/env python3
"""Matrix products of the CPU backend, beside PyTorch's torch.mm where --python names a Python that has it.

    ./dev bench products [--python PYTHON] [--threads 1] [--json FILE]

Shapes are those of encoders and decoders of 256 to 3,072 columns. Ours and PyTorch's run in turns, round by round, on as
many threads; a ratio is the median over rounds of PyTorch's seconds over ours, so that more than 1 means ours is faster.
Also printed: the share of the machine's multiply-add rate, measured in the same run, and the time of 1, 4 and 16 rows over
that of 64.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

SHAPES = [  # outputs, inputs
    (256, 256), (768, 256), (1024, 256), (256, 1024), (512, 512), (2048, 512), (512, 2048), (768, 768), (2304, 768),
    (3072, 768), (768, 3072),
]
ROWS = [1, 4, 16, 64, 128, 512]
PEER_ROWS = [16, 64, 128, 512]
SECONDS = 0.004  # of one timing, about


class Ours:
    """products_bench as a child that answers lines."""

    def __init__(self, program, threads, isa):
        command = [program, "--threads", str(threads), "--isa", isa]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def peak(self):
        return self.ask("peak")

    def seconds(self, rows, out, inner, repeats):
        return self.ask(f"{rows} {out} {inner} {repeats}")


class Torch(Ours):
    """The same lines, answered by this file in a Python with PyTorch."""

    def __init__(self, python, threads):
        command = [python, __file__, "--peer", "--threads", str(threads)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self.child.stdout.readline().strip()


def serve_torch(threads):
    import time

    import torch

    torch.set_num_threads(threads)
    print(f"PyTorch {torch.__version__}", flush=True)
    shape, weight = None, None
    for line in sys.stdin:
        rows, out, inner, repeats = map(int, line.split())
        if shape != (out, inner):
            shape, weight = (out, inner), torch.full((out, inner), 0.01)
        x, y = torch.full((rows, inner), 0.5), torch.empty((rows, out))
        start = time.perf_counter()
        for _ in range(repeats):
            torch.mm(x, weight.T, out=y)
        print((time.perf_counter() - start) / repeats, flush=True)


def measure(ours, torch, peak, rounds):
    rows_of = []
    for out, inner in SHAPES:
        times = {}
        for rows in ROWS:
            repeats = max(1, int(SECONDS * 0.7 * peak / (2 * rows * out * inner)))
            peer = torch if rows in PEER_ROWS else None
            seconds, ratios = [], []
            for turn in range(rounds + 1):  # the first one warms up
                mine = ours.seconds(rows, out, inner, repeats)
                theirs = peer.seconds(rows, out, inner, repeats) if peer else math.nan
                if turn > 0:
                    seconds.append(mine)
                    ratios.append(theirs / mine)
            times[rows] = statistics.median(seconds)
            row = {"rows": rows, "out": out, "in": inner, "microseconds": round(1e6 * times[rows], 2),
                   "peak_share": round(2 * rows * out * inner / times[rows] / peak, 3)}
            if peer:
                row["torch_over_ours"] = round(statistics.median(ratios), 3)
            rows_of.append(row)
            print(f"{out:5} x {inner:<5} rows {rows:4}  {row['microseconds']:10.1f} us  {row['peak_share']:.3f} of the peak"
                  + (f"  torch / ours {row['torch_over_ours']:.2f}" if peer else "")
                  + (f"  {times[rows] / times[64]:.3f} of 64 rows" if 64 in times and rows < 64 else ""), flush=True)
        print(f"{out:5} x {inner:<5} time of 1, 4, 16 rows over 64: "
              + ", ".join(f"{times[rows] / times[64]:.3f}" for rows in (1, 4, 16)), flush=True)
    return rows_of


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/bin/products_bench", help="the program products_bench")
    parser.add_argument("--python", help="a Python with PyTorch to compare with")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return serve_torch(args.threads)
    ours = Ours(args.bench, args.threads, args.isa)
    torch = Torch(args.python, args.threads) if args.python else None
    peak = ours.peak()
    print(f"{args.threads} thread(s), {peak / 1e9:.1f} GFLOP/s at most{', ' + torch.version if torch else ''}")
    rows = measure(ours, torch, peak, args.rounds)
    result = {"date": datetime.date.today().isoformat(), "machine": machine(), "load": os.getloadavg()[0],
              "threads": args.threads, "peak_gflops": round(peak / 1e9, 1), "rows": rows}
    if torch:
        result["peer"] = torch.version
        ratios = [row["torch_over_ours"] for row in rows if "torch_over_ours" in row]
        result["geometric_mean"] = round(math.exp(statistics.fmean(map(math.log, ratios))), 3)
        print(f"torch / ours: geometric mean {result['geometric_mean']}, least {min(ratios)}")
    wide = [row["peak_share"] for row in rows if row["rows"] >= 64]
    print(f"share of the peak, 64 rows and more: least {min(wide)}, median {statistics.median(wide):.3f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def machine():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
