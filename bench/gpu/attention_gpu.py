#!/usr/bin/env python3
"""Attention on a GPU, ours beside its peers, in one process and in turns, on the same inputs.

    attention_gpu.py [--quick | --layers] [--json FILE] [--plot FILE] [--minutes M]

Needs PyTorch with CUDA, and libedgewise_gpu_bench.so and libedgewise_cusparse.so (`./dev gpu-bundle` packs all of it;
run.sh of the bundle sets the library path). Times are medians over rounds in which every contender has its turn; a turn
is several runs between two CUDA events, over inputs that together do not fit into the L2 cache.

    ours        drawing the edges and attending over them: what the server calls, its host's part included
    given       our kernels over the same edges, given in device memory
    dense       ours over all pairs
    members     the memberships, which a layer computes before it draws

--layers times layers alone, in the cases of figures.py, beside PyTorch's attention, and prints what its figures are and
what they must be.

Left out of the peers' time: cuSPARSE and FlexAttention get the edges of the first copy of the inputs, drawn and laid out for
them before the clock starts. --dry-run runs all this on the CPU over emulated kernels, and measures nothing.
"""

import argparse
import datetime
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch  # noqa: E402  (before our libraries: it brings CUDA's)
import figures  # noqa: E402
import inputs as bench_inputs  # noqa: E402
import ours  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import timing  # noqa: E402

RANK = 32
DENSITIES = [0.01, 0.025, 0.10, 0.25, 1.0]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAX_LAYER_EDGES = 1 << 27  # listed beside a layer: 1 GB of keys and weights of a graph
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def relative_difference(got, want):
    return ((got.float() - want.float()).abs().max() / want.float().abs().max()).item()


class Bench:
    def __init__(self, args):
        self.args, self.dry_run = args, args.dry_run
        self.clock = timing.DryClock() if args.dry_run else timing.GpuClock()
        self.place = bench_inputs.emulated_memory(args.ours) if args.dry_run else lambda tensor: tensor
        self.device = "cpu" if args.dry_run else "cuda"
        properties = None if args.dry_run else torch.cuda.get_device_properties(0)
        self.device_name = "dry run, emulated: these are no measurements" if args.dry_run else properties.name
        self.cache_bytes = 1 << 16 if args.dry_run else properties.L2_cache_size
        self.ours = {precision: ours.Ours(args.ours, precision) for precision in args.precisions}
        self.ceilings = timing.ceilings(self.clock, PRECISIONS, args.dry_run)
        self.layers = False
        self.rows, self.correct, self.end = [], True, time.monotonic() + 60 * args.minutes

    def run_layers(self):
        """Cases of one shape behind each other have the same inputs."""
        self.layers = True
        inputs = dense = None
        for case in figures.DRY_LAYERS if self.dry_run else figures.LAYERS:
            shape = bench_inputs.Shape(case.n, case.head_dim, case.batch_heads)
            if time.monotonic() > self.end:
                print(f"out of time before {shape} density {case.density}", flush=True)
                return
            if inputs is None or (str(inputs.shape), inputs.rank) != (str(shape), case.rank):
                inputs = dense = None  # memory for the next
                inputs = bench_inputs.Inputs(shape, case.rank, self.cache_bytes, self.device, self.place)
                failures, dense = {}, []
                for name, make in peers.dense_peers(inputs, self.clock, self.dry_run):
                    if name in figures.PEERS:
                        dense += self.make(name, make, failures)
            precisions = [precision for precision in self.args.precisions if precision in case.precisions]
            self.try_density(inputs, case.density, [peer for peer in dense if peer.name[-4:] in precisions], None,
                             failures, precisions)  # fmt: skip

    def run(self):
        for head_dim in self.args.head_dims:
            for batch_heads in self.args.batch_heads:
                for n in self.args.lengths:
                    shape = bench_inputs.Shape(n, head_dim, batch_heads)
                    if time.monotonic() > self.end:
                        print(f"out of time before {shape}", flush=True)
                        continue
                    self.run_shape(shape)

    def make(self, name, make, failures):
        try:
            return [make()]
        except Exception as error:  # noqa: BLE001  as above
            failures[name] = str(error).strip().split("\n")[0][:200]
            self.clock.settle()
            return []

    def run_shape(self, shape):
        inputs = bench_inputs.Inputs(shape, RANK, self.cache_bytes, self.device, self.place)
        failures = {}
        dense = []
        for name, make in peers.dense_peers(inputs, self.clock, self.dry_run):
            dense += self.make(name, make, failures)
        flex = self.make("flex", lambda: peers.Flex(inputs, self.clock, self.dry_run), failures)
        for density in self.args.densities:
            if time.monotonic() > self.end:
                print(f"out of time before {shape} density {density}", flush=True)
                return
            self.try_density(inputs, density, dense, flex[0] if flex else None, failures, list(self.ours))

    def try_density(self, inputs, density, dense, flex, failures, precisions):
        try:
            self.run_density(inputs, density, dense, flex, dict(failures), precisions)
        except RuntimeError as error:  # ours, or no memory for what surrounds it
            self.correct = False
            print(f"FAILED: {inputs.shape} density {density}: {error}", flush=True)
        self.clock.settle()
        report.write_json(self.args.json, self)  # what there is, should a later one end the program

    def own_contenders(self, inputs, edges, precisions):
        drawn = [inputs.call(c) for c in range(inputs.copies)]
        # The first copy's edges, with each copy's values: as the peers have them.
        given = [inputs.call(c, edges) for c in range(inputs.copies)] if edges.listed else []
        contenders = []
        for precision in precisions:
            bench = self.ours[precision]
            kinds = [("ours", ours.DRAWN, drawn), ("dense", ours.ALL_PAIRS, drawn), ("members", ours.MEMBERSHIPS, drawn)]
            if given and edges.count > 0:
                kinds.append(("given", ours.GIVEN, given))
            for name, kind, calls in kinds:
                contenders.append(
                    peers.Contender(
                        f"{name}_{precision}",
                        lambda first, repeats, bench=bench, kind=kind, calls=calls: bench.time(kind, calls, first, repeats),
                    )
                )
        return contenders

    def run_density(self, inputs, density, dense, flex, failures, precisions):
        shape = inputs.shape
        inputs.set_density(density)
        some = next(iter(self.ours.values()))
        edges = bench_inputs.Edges(some, inputs, MAX_LAYER_EDGES if self.layers else bench_inputs.MAX_EDGES)
        contenders = self.own_contenders(inputs, edges, precisions) + list(dense)
        if not self.layers:
            contenders += self.make("authors_fp32", lambda: peers.dense_masked(inputs, self.clock), failures)
        block_mask_ms = None
        if edges.listed:
            if flex is not None:
                for precision in ["bf16"] if self.args.quick else list(PRECISIONS):
                    name = f"flex_{precision}"
                    contenders += self.make(
                        name, lambda p=precision, n=name: flex.contender(PRECISIONS[p], n, edges), failures
                    )
                block_mask_ms = getattr(flex, "block_mask_ms", None)
            if not self.dry_run and not self.layers:
                contenders += self.make(
                    "cusparse_fp32", lambda: peers.cusparse(self.args.cusparse, inputs, edges), failures
                )
        else:
            failures["given, flex, cusparse"] = f"{edges.count} edges are too many to list"
        times = timing.measure(contenders, self.args.rounds, self.clock, failures)
        own = {"ours", "given", "dense", "members"}
        for name in failures:
            if name.split("_")[0] in own and not name.startswith("given,"):
                self.correct = False
                print(f"FAILED: {name}: {failures[name]}", flush=True)
        checks = self.check(inputs, edges, contenders, times, precisions)
        peaks = {
            contender.name: contender.peak_bytes()
            for contender in contenders
            if contender.peak_bytes is not None and contender.name in times
        }
        others = {name: ms for name, ms in times.items() if name.split("_")[0] not in own}
        for precision in precisions:
            bench = self.ours[precision]
            self.rows.append(
                report.make_row(
                    self, shape, inputs.rank, density, edges.count, precision, times, others, failures, checks,
                    bench.peak_bytes(ours.DRAWN, inputs.call(0)), peaks, block_mask_ms,
                )  # fmt: skip
            )
            report.print_row(self.rows[-1])
        for contender in contenders:
            contender.close()

    def check(self, inputs, edges, contenders, times, precisions):
        """Largest errors: of ours against float64, of peers over the same edges against ours."""
        found = {}
        for precision in precisions:
            bench = self.ours[precision]
            kinds = [("ours", ours.DRAWN, None), ("dense", ours.ALL_PAIRS, None)]
            if f"given_{precision}" in times:
                kinds.append(("given", ours.GIVEN, edges))
            for name, kind, of in kinds:
                error = bench.error(kind, inputs.call(0, of))
                found[f"{name}_{precision}"] = error
                if not error <= TOLERANCE[precision]:
                    self.correct = False
                    print(f"WRONG: {name} {precision}: error {error:.1e} over {TOLERANCE[precision]:.0e}", flush=True)
        first = next(iter(self.ours.values()))
        for contender in contenders:
            if contender.name not in times or contender.output is None or contender.name == "authors_fp32":
                continue
            over_edges = contender.name.startswith(("flex", "cusparse"))
            first.time(ours.DRAWN if over_edges else ours.ALL_PAIRS, [inputs.call(0)], 0, 1)
            want = inputs.heads_first(inputs.out[0])
            found[contender.name] = relative_difference(contender.output().view_as(want), want)
        return found


def parse():
    parser = argparse.ArgumentParser(description="attention on a GPU, ours beside its peers")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--ours", default=os.path.join(here, "../../bin/libedgewise_gpu_bench.so"))
    parser.add_argument("--cusparse", default=os.path.join(here, "../../bin/libedgewise_cusparse.so"))
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--quick", action="store_true", help="a part of the grid, within five minutes")
    parser.add_argument("--layers", action="store_true", help="only layers in the cases of figures.py")
    parser.add_argument("--minutes", type=float, help="no shape is begun after so long")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--head-dims", type=int, nargs="+")
    parser.add_argument("--batch-heads", type=int, nargs="+")
    parser.add_argument("--densities", type=float, nargs="+")
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, over emulated kernels; measures nothing")
    args = parser.parse_args()
    defaults = {
        "lengths": [1024, 4096] if args.quick else [1024, 4096, 16384],
        "head_dims": [64] if args.quick else [64, 32],
        "batch_heads": [8, 2, 64],
        "densities": [0.01, 0.025, 0.10, 1.0] if args.quick else DENSITIES,
        "minutes": 3.5 if args.layers else 4.5 if args.quick else 600.0,
    }
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main():
    args = parse()
    if not args.dry_run and not torch.cuda.is_available():
        print("attention_gpu.py: PyTorch sees no CUDA device", file=sys.stderr)
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in ("cache_size_limit", "recompile_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
    bench = Bench(args)
    bench.date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    bench.torch = torch.__version__
    bench.command = " ".join([os.path.basename(sys.argv[0])] + sys.argv[1:])
    report.print_head(bench)
    with torch.no_grad():
        bench.run_layers() if args.layers else bench.run()
    report.write_json(args.json, bench)
    if args.layers:
        figures.print_figures(figures.of_layers(bench.rows))
    elif not args.dry_run:
        report.print_goals(bench.rows)
    report.plot(args.plot, bench)
    return 0 if bench.correct else 1


if __name__ == "__main__":
    sys.exit(main())
