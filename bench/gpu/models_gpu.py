#!/usr/bin/env python3
"""Whole models on a GPU: the server, and beside it PyTorch and transformers on the same GPU with the same weights.

    models_gpu.py --bin FOLDER [--figures] [--json FILE] [--seconds S] [--precisions bf16 fp32]

- `sbm`: random weights, 4 layers of 8 heads, 512 columns, 64 clusters, at several lengths and densities: with its own
  edges, over all pairs, and under a cap at a tenth of its density.
- `bert`: the shape of BERT-base. The peer is PyTorch, eager and as a CUDA graph.
- `gpt2` and `llama`: the shape of GPT-2 small, and a Llama of that size, whose texts go on. The peer is generate() of
  transformers.
- Models of examples/models that are there, and `long` under a cap and with samples.

Ours is `compute_us` of the answers, the server's time without queue and client, as a median; rates are those that the
client saw. A row is printed when it is there; --json gets them as JSON lines, behind one about the run. --seconds ends
before that many have passed: rows for which there is no time are "not run". Needs numpy; the peers are left out, and a
row says why, where there is no PyTorch with CUDA or no transformers. Exit codes: 0; 1 where a row failed or was not
run.

--figures times only the models of figures.py, and prints what its figures are and what they must be.
--dry-run takes tiny shapes, on any device, and measures nothing.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent  # of the repository, or of the GPU bundle
sys.path[:0] = [str(HERE), str(HERE.parent)]
import figures  # noqa: E402
import random_models  # noqa: E402
import sbm_models  # noqa: E402
from evaluation.server import Server  # noqa: E402  (random_models made tools importable)

# What bench/sbm_models.py adds to the memberships' logits, by the density that it leads to.
SHIFTS = {0.0025: -3.236490821473285, 0.01: -2.4248088908860486, 0.025: -1.852522753714073, 0.1: -0.8536916647595656}
ROW_SECONDS = 10  # no row is begun with less than that
PEER_SECONDS = 30  # nor are the peers, which take a while to be imported
CALL_SECONDS = 60


class Sizes:
    """SBM models as (density, tokens), texts as (tokens, at once), prompts as (tokens, at once, new ones)."""

    sbm_shape = {}  # in place of those of bench/sbm_models.py
    sbm = [(0.025, 1024), (0.025, 4096), (0.1, 4096), (0.01, 16384), (0.0025, 16384), (0.025, 16384), (0.0025, 32768)]
    texts = [(128, 1), (512, 1), (128, 16), (512, 16), (128, 64)]
    prompts = [(32, 1, 128), (32, 16, 128), (512, 1, 1)]
    bert, gpt2, llama = random_models.BERT_BASE, random_models.GPT2_SMALL, random_models.LLAMA_SMALL
    long = ["--samples=1,16"]
    turn = 0.6  # seconds of a load

    def write(self, repository):
        longest = max(tokens for _, tokens in self.sbm)
        for density in {density for density, _ in self.sbm}:
            sbm_models.write_sbm_model(repository / f"sbm-{density:g}", SHIFTS[density], positions=longest,
                                       **self.sbm_shape)
        if self.texts:
            random_models.write_bert(repository / "bert", *self.bert)
        if self.prompts:
            random_models.write_gpt2(repository / "gpt2", *self.gpt2)
            random_models.write_llama(repository / "llama", *self.llama)


class DrySizes(Sizes):
    sbm_shape = {"layers": 1, "heads": 2, "head_dim": 16, "inner": 16, "clusters": 16}
    sbm = [(0.1, 16)]
    texts = [(16, 2)]
    prompts = [(8, 2, 3)]
    bert, gpt2, llama = (1, 32, 2, 48, 60), (1, 32, 2, 48, 60), (1, 32, 2, 1, 48, 60)
    long = ["--limit=1"]
    turn = 0.05


class Report:
    def __init__(self, path, seconds, about):
        self.end = time.monotonic() + seconds
        self.rows = []
        self.file = open(path, "w", encoding="utf-8") if path else None
        self.failed = False  # a row, or it was not run
        self.write(about)

    def write(self, row):
        self.rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if self.file:
            print(json.dumps(row), file=self.file, flush=True)

    def row(self, case, precision, measure):
        """The findings of `measure`, as a row; or why there is none. Returns whether it was found."""
        row = {"case": case, "precision": precision}
        if self.too_late(row, ROW_SECONDS):
            return False
        try:
            self.write(row | measure())
        except Exception as error:  # noqa: BLE001  of a model or of a peer: a result
            self.fail(row, error)
            return False
        return True

    def too_late(self, row, needed):
        """Whether there are fewer seconds left than that; a row says so."""
        if time.monotonic() + needed <= self.end:
            return False
        self.failed = True
        self.write(row | {"not_run": "out of time"})
        return True

    def fail(self, row, error):
        self.failed = True
        self.write(row | {"failed": f"{type(error).__name__}: {error}"[:500]})


def rounded(value):
    return float(f"{value:.4g}")


def bench(server, model, turn, *flags, at_once=1):
    """The figures of a load of `turn` seconds."""
    calls, summary = server.folder / "calls.jsonl", server.folder / "bench.json"
    for path in (calls, summary):
        path.unlink(missing_ok=True)
    done = subprocess.run(
        [server.binaries / "edgewise", "bench", f"--server={server.address}", f"--model={model}", "--warmup=3",
         f"--duration={turn}s", f"--concurrency={at_once}", f"--timeout={CALL_SECONDS}s", f"--calls={calls}",
         f"--json={summary}", *flags], capture_output=True, text=True, timeout=2 * CALL_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:] or f"edgewise bench ended with {done.returncode}")
    found = json.loads(summary.read_text())
    compute = [json.loads(line)["compute_us"] for line in calls.read_text().splitlines()]
    rate = "tokens_per_second" if "tokens_per_second" in found else "inputs_per_second"
    return {"compute_ms": rounded(statistics.median(compute) / 1e3), "p50_ms": rounded(found["latency_ms"]["p50"]),
            rate: rounded(found[rate]), "density": rounded(found["density"]), "answered": found["answered"]}


class Ours:
    """The rows of the server in one precision."""

    def __init__(self, report, server, sizes, precision):
        self.report, self.server, self.sizes, self.precision = report, server, sizes, precision

    def load(self, model, *flags, at_once=1):
        return bench(self.server, model, self.sizes.turn, *flags, at_once=at_once)

    def text(self, tokens, words):
        return f"--input={sbm_models.text_of(self.server.folder, tokens, words)}"

    def sbm(self, density, tokens):
        model, text = f"sbm-{density:g}", self.text(tokens, sbm_models.WORDS)
        ways = {"own": [], "dense": ["--dense"], "cap_of_a_tenth": [f"--max_density={density / 10:g}"]}
        found = {way: self.load(model, text, *flags) for way, flags in ways.items()}
        times = {f"{way}_ms": row["compute_ms"] for way, row in found.items()}
        return {"density": found["own"]["density"], **times,
                "dense_over_own": rounded(times["dense_ms"] / times["own_ms"]),
                "cap_over_own": rounded(times["cap_of_a_tenth_ms"] / times["own_ms"])}

    def generate(self, model, words, prompt, at_once, new):
        return self.load(model, self.text(prompt, words), f"--new_tokens={new}", at_once=at_once)

    def run(self):
        for density, tokens in self.sizes.sbm:
            self.report.row(f"sbm {density:.2%}, {tokens} tokens", self.precision, lambda: self.sbm(density, tokens))
        words = self.sizes.bert[-1]
        for tokens, at_once in self.sizes.texts:
            self.report.row(f"bert, {tokens} tokens x {at_once}", self.precision, lambda: self.load(
                "bert", self.text(tokens, words), f"--inputs_per_request={at_once}"))
        for model, shape in (("gpt2", self.sizes.gpt2), ("llama", self.sizes.llama)):
            for prompt, at_once, new in self.sizes.prompts:
                served = self.report.row(name_of(model, prompt, at_once, new), self.precision,
                                         lambda: self.generate(model, shape[-1], prompt, at_once, new))
                if not served:
                    break


def name_of(model, prompt, at_once, new):
    return f"{model}, {new} tokens after {prompt} x {at_once}"


class Bundled:
    """The rows of models that come with the project."""

    LOADS = [("sentiment", "--text=a warm film", (), 1), ("sentiment", "--text=a warm film", ("--samples=16",), 1),
             ("sentiment", "--text=a warm film", (), 32), ("shakespeare-ssa", "--text=ROMEO:", ("--new_tokens=64",), 1),
             ("shakespeare-llama", "--text=ROMEO:", ("--new_tokens=64",), 1)]

    def __init__(self, report, server, sizes, precision, names):
        self.report, self.server, self.sizes, self.precision, self.names = report, server, sizes, precision, names

    def long(self, data):
        found = self.server.evaluate("long", data, [0.01], *self.sizes.long)
        return {f"{setting['setting']}, {setting['samples']} samples": {
            "compute_ms": rounded(setting["compute_ms"]["median"]), "accuracy": rounded(setting["quality"]),
            "density": rounded(setting["density"])} for setting in found["settings"]}

    def run(self):
        for model, text, flags, at_once in self.LOADS:
            if model in self.names:
                case = " ".join([model, *flags, f"x {at_once}"])
                self.report.row(case, self.precision, lambda: bench(
                    self.server, model, self.sizes.turn, text, *flags, at_once=at_once))
        data = ROOT / "examples/data/long.jsonl"
        if "long" in self.names and data.exists():
            self.report.row("long", self.precision, lambda: self.long(data))


@contextlib.contextmanager
def started(args, report, repository, folder, precision):
    """A server of these models, or None where it does not start, which a row says."""
    flags = [f"--device={args.device}", f"--precision={precision}", "--max_result_bytes=2000000000"]
    with contextlib.ExitStack() as stack:
        server = None

        def start():
            nonlocal server
            server = stack.enter_context(Server(args.bin, repository, folder, flags))
            server.folder = pathlib.Path(folder)
            return {"device": next(iter(server.models().values()))["device"]}
        report.row(f"server of {repository.name}", precision, start)
        yield server


def run_peers(args, report, sizes, repository):
    if report.too_late({"case": "peers"}, PEER_SECONDS):
        return
    try:
        import models_peers
        peers = models_peers.Peers(args.dry_run)
    except (ImportError, RuntimeError) as error:
        report.write({"case": "peers", "skipped": str(error)})
        return
    for precision in args.precisions:
        for rows in (peers.bert(repository / "bert/1", precision, sizes.texts, sizes.bert[-1]),
                     peers.generate("gpt2", repository / "gpt2/1", precision, sizes.prompts, sizes.gpt2[-1]),
                     peers.generate("llama", repository / "llama/1", precision, sizes.prompts, sizes.llama[-1])):
            try:
                for case, measure in rows:
                    report.row(case, precision, measure)
            except Exception as error:  # noqa: BLE001  a module that cannot be made
                report.fail({"case": "peers", "precision": precision}, error)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/bin"), help="folder of edgewise-server and edgewise")
    parser.add_argument("--library_path", help="LD_LIBRARY_PATH of those")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "examples/models", help="the bundled models")
    parser.add_argument("--json", help="write the rows to this file, as JSON lines")
    parser.add_argument("--device", default="cuda", help="of the server")
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--figures", action="store_true", help="only the models of figures.py")
    parser.add_argument("--seconds", type=float, default=600.0, help="ends within so many")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes; measures nothing")
    return parser.parse_args()


def device_name():
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0]


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server stays behind
    sizes, loads = DrySizes() if args.dry_run else Sizes(), Bundled.LOADS
    if args.figures:
        sizes.sbm = sizes.sbm if args.dry_run else [figures.SBM_CASE]
        sizes.texts, sizes.prompts, loads = [], [], []
    report = Report(args.json, args.seconds, {
        "benchmark": "models_gpu", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": "dry run: these are no measurements" if args.dry_run else device_name(),
        "command": shlex.join(["models_gpu.py", *sys.argv[1:]])})
    if args.library_path:
        os.environ["LD_LIBRARY_PATH"] = args.library_path  # of the programs; this process has its own already
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        written, bundled = folder / "written", folder / "bundled"
        sizes.write(written)
        names = {path.name for path in args.models.iterdir()} & {"long", *(load[0] for load in loads)}
        for name in names:
            shutil.copytree(args.models / name, bundled / name)
        for precision in args.precisions:
            with started(args, report, written, folder, precision) as server:
                if server:
                    Ours(report, server, sizes, precision).run()
            if not names:
                continue
            with started(args, report, bundled, folder, precision) as server:
                if server:
                    Bundled(report, server, sizes, precision, names).run()
        if not args.figures:
            run_peers(args, report, sizes, written)
    if args.figures:
        figures.print_figures(figures.of_models(report.rows[1:]))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
