"""The shared parts of the scenarios of load: a server on one core, `edgewise bench` on another, and figures beside their goals."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import tempfile
import textwrap
import time
import urllib.request

import numpy as np
from products import machine
from random_models import ROOT

from evaluation.server import Server  # random_models made tools importable

EXAMPLES = ROOT / "examples/models"
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
WIDTH, INDENT = 120, 26  # of what is printed
MOST_CALLERS, MOST_OF_FLOOD = 4096, 16384  # calls at a time of one open loop
NO_DEADLINE = 120  # seconds


@contextlib.contextmanager
def on_core(core):
    """Processes started inside stay on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def process_cpu(pid):
    """CPU seconds of a process so far: Linux has a clock of each."""
    return time.clock_gettime((~pid << 3) | 2)


class PinnedServer(Server):
    """edgewise-server with one thread of the backend, all on one core. `token_file`: of its health checks."""

    def __init__(self, binaries, repository, folder, flags=(), token_file=None):
        self.token = [f"--token_file={token_file}"] if token_file else []
        with on_core(SERVER_CORE):
            super().__init__(binaries, repository, folder,
                             ["--threads=1", "--device=cpu", "--metrics_listen=127.0.0.1:0", *flags])

    def _run(self, arguments, seconds):
        return super()._run([*arguments, *self.token], seconds)

    def metric(self, name):
        """The sum of a metric over its labels."""
        serving = next(line for line in self.log.read_text().splitlines() if '"event":"serving"' in line)
        url = f"http://127.0.0.1:{json.loads(serving)['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


class EchoServer(Server):
    """A server that answers at once, on the same core."""

    def __init__(self, binaries, folder):
        self.binaries, self.log, self.address = pathlib.Path(binaries), pathlib.Path(folder) / "server.log", ""
        with on_core(SERVER_CORE), open(self.log, "wb") as log:
            self.process = subprocess.Popen([self.binaries / "echo_server"], stderr=log)


class Cpu:
    """CPU seconds that a server used between `with` and its end; of its busiest thread, too: the one that computes."""

    def __init__(self, server):
        self.pid = server.process.pid

    def threads(self):
        times = {}
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                times[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return times

    def __enter__(self):
        self.before, self.threads_before = process_cpu(self.pid), self.threads()
        return self

    def __exit__(self, *_):
        threads = self.threads()  # first, as at the begin: no thread has used more than all
        self.seconds = process_cpu(self.pid) - self.before
        self.busiest = max(after - self.threads_before.get(task, 0.0) for task, after in threads.items())


def quantile(values, share):
    """0 for none."""
    return float(np.quantile(values, share)) if len(values) else 0.0


class Calls:
    """The calls of a load, as arrays in the order of their ends. A call counts from when it was due."""

    def __init__(self, records, unsent):
        def column(name):
            return np.array([record[name] for record in records], float)

        self.due, self.begun, self.end = column("due"), column("begun"), column("end")
        self.codes = np.array([record["code"] for record in records], str)
        self.ok = self.codes == "OK"
        self.outputs, self.compute, self.batch = column("outputs"), column("compute_us") / 1e6, column("batch_inputs")
        self.samples, self.edges = column("samples"), column("edges")
        self.unsent = unsent

    @staticmethod
    def joined(parts):
        """The calls of several loads as those of one."""
        whole = Calls([], sum(part.unsent for part in parts))
        for name in ("due", "begun", "end", "codes", "ok", "outputs", "compute", "batch", "samples", "edges"):
            setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        return whole

    @property
    def latency(self):
        return self.end - self.due

    def good(self, deadline):
        """Which calls were answered in time."""
        return self.ok & (self.latency <= deadline)

    def quantile(self, share):
        """The percentile of the seconds of the calls that were answered."""
        return quantile(self.latency[self.ok], share)

    def forward(self):
        """Seconds of the forward pass that an input took: what was computed together shares its time."""
        return float(np.mean(self.compute[self.ok] / np.maximum(self.batch[self.ok], 1))) if self.ok.any() else 0.0

    def rate(self):
        """Answers a second."""
        return float(self.ok.sum() / self.end.max()) if len(self.end) else 0.0

    def counts(self):
        """How many were sent and answered; the others by code; and how many could not be sent."""
        codes, counts = np.unique(self.codes[~self.ok], return_counts=True)
        others = dict(zip(codes.tolist(), counts.tolist()))
        return {"sent": len(self.ok), "answered": int(self.ok.sum()), "others": others, "unsent": self.unsent}


class Load:
    """One `edgewise bench` that runs. With `rate` arrivals are Poisson, and `clients` the most calls at a time (0: enough);
    otherwise this number of `clients` call in turn (0: one). `flood`: plain requests at a high rate, which a cheaper generator sends."""

    def __init__(self, folder, server, model, data, *, seconds, clients=0, rate=0, deadline=0, flood=False, flags=()):
        self.files = pathlib.Path(tempfile.mkdtemp(dir=folder))
        if not rate:
            clients = clients or 1
        elif not clients:
            clients = int(min(MOST_OF_FLOOD if flood else MOST_CALLERS, max(64, 2 * rate * (deadline or NO_DEADLINE / 4))))
        program = [server.binaries / "flood"] if flood else [server.binaries / "edgewise", "bench"]
        command = [*program, f"--server={server.address}", f"--model={model}",
                   f"--input={data}", f"--concurrency={clients}", f"--rate={rate}", f"--duration={seconds}s",
                   f"--json={self.files / 'summary'}", f"--calls={self.files / 'calls'}",
                   f"--timeout={deadline or NO_DEADLINE}s", *flags]
        with on_core(CLIENT_CORE), open(self.files / "log", "wb") as log:
            # A session of its own takes no part of the server's share of its core (overload.py).
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self):
        self.process.wait(600)
        summary = (self.files / "summary").read_text() if (self.files / "summary").exists() else ""
        if not summary:
            raise RuntimeError(f"edgewise bench: {(self.files / 'log').read_text()}")
        records = [json.loads(line) for line in (self.files / "calls").read_text().splitlines()]
        return Calls(records, json.loads(summary)["unsent"])


def goal(found, relation, bound):
    """A figure beside its goal; `relation`: "at least" or "at most". A figure that is None misses it."""
    met = found is not None and (found >= bound if relation == "at least" else found <= bound)
    return {"found": None if found is None else round(float(found), 4), "goal": f"{relation} {bound:.4g}",
            "met": bool(met)}


class Run:
    """One run of a scenario: its servers and loads, and the rows that it prints and writes."""

    def __init__(self, args, folder, output):
        self.args, self.folder, self.output = args, folder, output
        self.seconds = args.seconds
        self.goals = []

    def wants(self, case):
        return any(part in case for part in self.args.only.split(","))

    def new_folder(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def server(self, repository=EXAMPLES, flags=(), token_file=None):
        return PinnedServer(self.args.bin, repository, self.new_folder(), [*shlex.split(self.args.flags), *flags],
                            token_file)

    def echo(self):
        return EchoServer(self.args.bin, self.new_folder())

    def start(self, server, model, data, **options):
        return Load(self.folder, server, model, data, **options)

    def load(self, server, model, data, **options):
        return self.start(server, model, data, **options).wait()

    def row(self, case, figures, **goals):
        """Prints and writes the figures of one case, and those that have a goal."""
        figures = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in figures.items()}
        print(textwrap.fill("  ".join(f"{name} {value}" for name, value in figures.items()), WIDTH, break_long_words=False,
                            initial_indent=f"{case:{INDENT}}", subsequent_indent=" " * INDENT), flush=True)
        self.goals += [(case, name, one) for name, one in goals.items()]
        self.write({"case": case, "figures": figures, "goals": goals})

    def print_goals(self):
        for case, name, one in self.goals:
            verdict = "met" if one["met"] else "missed"
            print(f"{case:{INDENT}}{name:36}{one['found'] if one['found'] is not None else 'never':>10}   "
                  f"{one['goal']:18}{verdict}")

    def write(self, line):
        if self.output:
            self.output.write(json.dumps(line) + "\n")
            self.output.flush()


def data_of(model):
    return ROOT / f"examples/data/{model}.jsonl"


def main(name, description, scenario, seconds, add_flags=lambda parser: None):
    """Runs `scenario(run)` on the command line's flags; `seconds`: the default of one load."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/bin"), help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=seconds, help="of one load (default %(default)s)")
    parser.add_argument("--only", default="", help="cases whose name holds this, or one of these: A,B")
    parser.add_argument("--flags", default="", help="more flags of the server")
    parser.add_argument("--json", help="write the rows to this file, one a line")
    add_flags(parser)
    args = parser.parse_args()
    command = shlex.join(["./dev", "bench", name, *(f"--{key}={value}" for key, value in vars(args).items()
                                                 if key not in ("bin", "json") and value != parser.get_default(key))])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        output = stack.enter_context(open(args.json, "w", encoding="utf-8")) if args.json else None
        run = Run(args, folder, output)
        run.write({"scenario": name, "date": datetime.date.today().isoformat(), "machine": machine(),
                   "cores": [SERVER_CORE, CLIENT_CORE], "load": os.getloadavg()[0], "command": command})
        scenario(run)
        run.print_goals()
    return 0
