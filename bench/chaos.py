#!/usr/bin/env python3
"""Three replicas, one of which is killed every few seconds, behind HAProxy, nginx, or a client that balances itself.

    ./dev bench chaos [--seconds 120] [--every 5] [--only haproxy] [--json FILE]

Clients call the bundled models `sentiment`, `long` and `shakespeare-ssa`, 1 % of the calls wrong and 1 % cancelled.
Single requests are sent again after UNAVAILABLE, a generation also after INTERNAL, CANCELLED and UNKNOWN, with which a
proxy ends a stream that had begun. Each right answer is known byte for byte. In turn a replica gets SIGKILL and is
started again. The proxies run deploy/haproxy.cfg and deploy/nginx-replicas.conf, on other ports; one that is not
installed (Debian: haproxy, nginx-light) is left out, and the output says so. Figures:

sent, answered, again    calls; how many times one of them was sent again, after which code
kills                    replicas that were killed
                         the others: as in soak.py
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

from marked import Callers, Marked
from serving import EXAMPLES, ROOT, goal, main

MODELS = ["sentiment", "long", "shakespeare-ssa"]
CLIENTS = 6
REPLICAS = {8001: 8002, 8011: 8012, 8021: 8022}  # in the configurations of the proxies: calls, health
FRONT = 8000
DOWN_SECONDS = 1


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Replicas(threading.Thread):
    """Three servers on ports of their own; one dies each `every` seconds, and comes back."""

    def __init__(self, run, repository, ports, every):
        super().__init__(daemon=True)
        self.scenario, self.repository, self.every = run, repository, every
        self.ports = [(ports[call], ports[health]) for call, health in REPLICAS.items()]
        self.servers, self.kills, self.failed, self.stop = [], 0, [], threading.Event()

    def start_one(self, ports):
        flags = [f"--listen=127.0.0.1:{ports[0]}", f"--metrics_listen=127.0.0.1:{ports[1]}", "--ready=all"]
        return self.scenario.server(self.repository, flags).__enter__()

    def run(self):
        while not self.stop.wait(self.every):
            victim = self.kills % len(self.servers)
            self.servers[victim].process.kill()
            self.servers[victim].process.wait()
            self.kills += 1
            time.sleep(min(DOWN_SECONDS, self.every / 5))
            try:
                self.servers[victim] = self.start_one(self.ports[victim])
            except RuntimeError as error:
                self.failed.append(str(error))

    def __enter__(self):
        self.servers = [self.start_one(ports) for ports in self.ports]
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.is_alive():
            self.join()
        for server in self.servers:
            server.__exit__()


def configuration(file, folder, ports):
    """A proxy's file with the ports of this run."""
    text = file.read_text()
    for port in sorted(ports, reverse=True):
        for before in (":", "port ", "port_value: "):
            text = text.replace(f"{before}{port}", f"{before}{ports[port]}")
    # Folders of this run, so that nginx needs none of the system's.
    paths = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in
                    ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = folder / file.name
    path.write_text(text.replace("http {\n", "http {\n" + paths))
    return path


@contextlib.contextmanager
def proxy(kind, folder, ports, files=ROOT / "deploy"):
    """The address of the proxy that runs; `files`: where its configuration is."""
    if kind == "haproxy":
        command = ["-db", "-f", configuration(files / "haproxy.cfg", folder, ports)]
    elif kind == "envoy":
        command = ["-c", configuration(files / "envoy.yaml", folder, ports), "--disable-hot-restart", "--log-level", "error"]
    else:
        command = ["-p", folder, "-e", "stderr", "-c", configuration(files / "nginx-replicas.conf", folder, ports), "-g",
                   f"daemon off; pid {folder}/pid;"]
    log = folder / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen([program(kind), *command], stdout=out, stderr=out)
    try:
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ports[FRONT]), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{kind} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield f"127.0.0.1:{ports[FRONT]}"
    finally:
        process.terminate()
        process.wait(30)


def program(kind):
    return shutil.which(kind, path=os.environ.get("PATH", "") + ":/usr/sbin")


def chaos(run, kind, repository):
    ports = dict(zip([FRONT, *REPLICAS, *REPLICAS.values()], free_ports(1 + 2 * len(REPLICAS))))
    with Replicas(run, repository, ports, run.args.every) as replicas, contextlib.ExitStack() as stack:
        if kind == "client":
            address = "ipv4:" + ",".join(f"127.0.0.1:{call}" for call, _ in replicas.ports)
        else:
            address = stack.enter_context(proxy(kind, run.new_folder(), ports))
            time.sleep(1.5)  # until the proxy has asked each replica
        with Callers(run.marked, [address], CLIENTS, bad=0.01, cancelled=0.01, generations=0.2,
                     retry=True) as callers:
            replicas.start()
            time.sleep(run.seconds)
            replicas.stop.set()
            replicas.join()
    for detail in [*callers.details, *replicas.failed]:
        print(f"  {detail}", file=sys.stderr)
    troubles = sum(callers.troubles.values()) + len(replicas.failed)
    run.row(kind, {**callers.figures, **callers.troubles, "kills": replicas.kills},
            troubles=goal(troubles, "at most", 0), kills=goal(replicas.kills, "at least", 1))


def scenario(run):
    repository = run.new_folder() / "models"
    for model in MODELS:
        shutil.copytree(EXAMPLES / model, repository / model)
    run.marked = Marked(run.new_folder(), MODELS, tokens=60)
    with run.server(repository) as quiet:
        run.marked.learn(quiet.address)
    for kind in ("haproxy", "nginx", "client"):
        if not run.wants(kind):
            continue
        if kind != "client" and not program(kind):
            print(f"{kind} left out: it is not installed")
            continue
        chaos(run, kind, repository)


def add_flags(parser):
    parser.add_argument("--every", type=float, default=5, help="seconds between two kills (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("chaos", __doc__, scenario, seconds=120, add_flags=add_flags))
