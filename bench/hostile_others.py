"""What a hostile client or file does to the others: short requests of another client, health checks, generations."""

import contextlib
import multiprocessing
import os
import pathlib
import re
import shutil
import threading
import time

import grpc
import numpy as np
from serving import EXAMPLES, SERVER_CORE, data_of, goal

from evaluation import stubs  # serving made tools importable

MEMORY = 256 << 20
SLACK = 64 << 20
HOSTILE = "127.0.0.2"  # the address of the hostile client; the others come from 127.0.0.1
RATE = 250             # short requests a second
PART = 0.8             # of a case's seconds: 1000 requests in 5 s
MOST_MORE_MS, MOST_HEALTH_MS, MOST_GAP = 50, 100, 1.0
HEALTH_SECONDS, GENERATION_SECONDS = 0.02, 0.1  # from the end of one to the next
CALL_SECONDS = 60
ADDRESS_SPACE = 8 << 30  # a hostile file must not take the machine's memory


def resident(server, name):
    """Bytes; None: the process has ended."""
    found = re.search(rf"{name}:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())
    return 1024 * int(found[1]) if found else None


def port_of(server):
    return int(server.address.rsplit(":", 1)[1])


def repository(run, write=None):
    """A folder of the models that the others use, and of `hostile`, which write(folder) makes."""
    models = run.new_folder() / "models"
    for model in ("sentiment", "shakespeare-ssa"):
        shutil.copytree(EXAMPLES / model, models / model)
    if write:
        write(models / "hostile")
    return models


def forget_peak(server):
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def burn():
    os.sched_setaffinity(0, {SERVER_CORE})
    while True:
        pass


@contextlib.contextmanager
def burner():
    """A process that takes what it gets of the server's core."""
    process = multiprocessing.get_context("fork").Process(target=burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


class Watch:
    """Health checks, and a generation after the other, while the `with` block runs."""

    def __init__(self, run, server):
        if not hasattr(run, "stubs"):
            run.stubs = stubs.make(run.new_folder())
        self.messages, self.services = run.stubs
        self.channel = grpc.insecure_channel(server.address)
        self.end, self.health, self.gaps, self.failed = threading.Event(), [], [], 0
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.check, self.generate)]

    def check(self):
        call = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        while not self.end.wait(HEALTH_SECONDS):
            begun = time.monotonic()
            try:
                call(b"", timeout=CALL_SECONDS)
            except grpc.RpcError:
                self.failed += 1
            self.health.append(time.monotonic() - begun)

    def generate(self):
        service = self.services.InferenceServiceStub(self.channel)
        request = self.messages.GenerateRequest(model="shakespeare-ssa", max_new_tokens=50)
        request.prompt.text = "ROMEO:"
        while not self.end.wait(GENERATION_SECONDS):
            last = time.monotonic()
            try:
                call = service.Generate(request, timeout=CALL_SECONDS)
                for _ in call:
                    now = time.monotonic()
                    self.gaps.append(now - last)
                    last = now
                    if self.end.is_set():
                        call.cancel()
                        break
            except grpc.RpcError:
                self.failed += not self.end.is_set()
                self.gaps.append(time.monotonic() - last)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join(2 * CALL_SECONDS)
        self.channel.close()


def short_requests(run, server):
    """Milliseconds of the short requests of another client; one that is not answered took for ever."""
    calls = run.load(server, "sentiment", data_of("sentiment"), seconds=PART * run.seconds, rate=RATE,
                     flags=["--warmup=0"])
    return np.where(calls.ok, 1e3 * calls.latency, np.inf)


def quantile(values, share):
    """None: for ever, or of nothing."""
    found = float(np.quantile(values, share, method="higher")) if len(values) else np.inf
    return found if np.isfinite(found) else None


def beside_burner(run):
    """p99 in milliseconds of the short requests beside a process that burns the same CPU; measured once."""
    if not hasattr(run, "beside_burner"):
        with run.server(repository(run), flags=[f"--max_memory={MEMORY}"]) as server:
            with Watch(run, server) as watch, burner():
                times = short_requests(run, server)
        run.beside_burner = quantile(times, 0.99)
        run.row("beside a busy process", {"requests": len(times), "p50_ms": quantile(times, 0.5),
                                          "p99_ms": run.beside_burner,
                                          "health_p99_ms": 1e3 * quantile(watch.health, 0.99),
                                          "longest_wait_for_a_token_s": max(watch.gaps)})
    return run.beside_burner


def beside(run, server, attack, idle=None):
    """Others beside attack(end): threads that work until the event is set. Gives figures and goals. `idle`: resident
    bytes before, where the attack has begun."""
    before = beside_burner(run)
    idle = idle or resident(server, "VmRSS")
    forget_peak(server)
    end = threading.Event()
    with Watch(run, server) as watch:
        threads = attack(end)
        for thread in threads:
            thread.start()
        times = short_requests(run, server)
        end.set()
    for thread in threads:
        thread.join()
    peak = resident(server, "VmHWM")
    alive = peak is not None
    p99, health = quantile(times, 0.99), quantile(watch.health, 0.99)
    figures = {"requests": len(times), "p50_ms": quantile(times, 0.5), "p99_ms": p99, "others_failed": watch.failed,
               "idle_mib": idle / 2**20, "alive": alive}
    goals = {"p99_more_ms": goal(None if None in (p99, before) else p99 - before, "at most", MOST_MORE_MS),
             "health_p99_ms": goal(None if health is None or not alive else 1e3 * health, "at most", MOST_HEALTH_MS),
             "longest_wait_for_a_token_s": goal(max(watch.gaps) if watch.gaps and alive else None, "at most", MOST_GAP),
             "resident_over_idle_mib": goal(peak and (peak - idle) / 2**20, "at most", (MEMORY + SLACK) / 2**20)}
    return figures, goals
