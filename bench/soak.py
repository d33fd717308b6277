#!/usr/bin/env python3
"""Minutes of mixed load with mistakes, cancellations and reloads: nothing is lost or mixed up, and memory stays.

    ./dev bench soak [--seconds 600] [--only mixed] [--json FILE]

Clients call the bundled models `sentiment`, `long` and `shakespeare-ssa` in turn: single requests, streams,
generations, 1 % wrong requests and 1 % that are cancelled. Each right answer is known byte for byte. 20 times, every
30 s in 600 s, another version of each model comes and the old one goes; every third time a broken one comes too. The
same runs for a third of the time on a server that leaks on purpose, which must be noticed. Memory settles in the first
tenth of the time, a minute of 600 s; shorter runs seem to grow. Figures:

sent, answered, others   calls; those that were refused, or ended as a wrong or cancelled one must, are `others`
lost                     no answer within a minute
doubled                  answered more than once
crossed                  an answer that belongs to another call
wrong_answers            an answer that is nobody's
wrong_statuses           a status that is not right for the call
idle_mb                  resident memory before the first call; models are loaded
over_idle_mb             the most resident memory after the first tenth of the time, over that
working_memory_mb, allocator_used_mb, allocator_free_mb   the metrics at the end (docs/metrics.md)
growth_mb_per_minute     of the resident memory in the second half: the line through the least value of each twentieth
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import threading
import time

import numpy as np
from marked import Callers, Marked
from serving import EXAMPLES, goal, main

MODELS = ["sentiment", "long", "shakespeare-ssa"]
CLIENTS = 6
RELOADS = 20
MOST_GROWTH = 0.5  # MB a minute
MOST_OVER_IDLE = 64  # MB
SHARES = {"bad": 0.01, "cancelled": 0.01, "streams": 0.1, "generations": 0.1}


def resident_mb(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def later(samples, share):
    """Times and sizes of [(seconds, MB)] without this share of the time."""
    times, sizes = np.array(samples).T
    kept = times >= times[0] + (times[-1] - times[0]) * share
    return times[kept], sizes[kept]


def growth(samples, parts=20):
    """MB a minute of [(seconds, MB)] in the second half. Least values: a reload holds two versions at once."""
    times, sizes = later(samples, 0.5)
    part = np.minimum(((times - times[0]) / (times[-1] - times[0]) * parts).astype(int), parts - 1)
    least = [(times[part == p].mean(), sizes[part == p].min()) for p in range(parts) if (part == p).any()]
    at, size = np.array(least).T
    return float(np.polyfit(at, size, 1)[0] * 60)


class Reloads(threading.Thread):
    """Brings another version of each model and takes the old one away, every `seconds`: 2 for 1, then 1 for 2."""

    def __init__(self, server, repository, seconds):
        super().__init__(daemon=True)
        self.server, self.repository, self.seconds = server, repository, seconds
        self.stop, self.count, self.failed = threading.Event(), 0, []

    def run(self):
        while not self.stop.wait(self.seconds):
            self.count += 1
            for model in MODELS:
                try:
                    self.replace(model, *((1, 2) if self.count % 2 else (2, 1)))
                except Exception as error:  # pylint: disable=broad-except
                    self.failed.append(f"{model}: {error!r}")

    def replace(self, model, old, new):
        folder = self.repository / model
        if self.count % 3 == 0:
            (folder / "3").mkdir()
            (folder / "3/config.json").write_text("{")
        shutil.copytree(folder / str(old), folder / "coming")
        os.rename(folder / "coming", folder / str(new))
        self.hang_up_until(model, new, True)
        os.rename(folder / str(old), self.repository.parent / f"{model}-{old}")
        shutil.rmtree(self.repository.parent / f"{model}-{old}")
        shutil.rmtree(folder / "3", ignore_errors=True)
        self.hang_up_until(model, old, False)

    def hang_up_until(self, model, version, serves):
        self.server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 60
        while self.serves(model, version) != serves:
            if time.monotonic() > end:
                raise RuntimeError(f"version {version} {'does not serve' if serves else 'still serves'}")
            time.sleep(0.05)

    def serves(self, model, version):
        name = f'edgewise_model_ready{{model="{model}",version="{version}"}}'
        return self.server.metric(name) == 1


@contextlib.contextmanager
def preloaded(library):
    """Processes started inside load `library` first."""
    if library:
        os.environ["LD_PRELOAD"] = str(library)
    try:
        yield
    finally:
        os.environ.pop("LD_PRELOAD", None)


def soak(run, case, seconds, library=None):
    repository = run.new_folder() / "models"
    for model in MODELS:
        shutil.copytree(EXAMPLES / model, repository / model)
    with run.server(repository) as quiet:
        run.marked.learn(quiet.address)
    with preloaded(library):
        server = run.server(repository)
    with server:
        reloads = Reloads(server, repository, seconds / RELOADS)
        idle = resident_mb(server.process.pid)
        samples, start = [], time.monotonic()
        with Callers(run.marked, [server.address], CLIENTS, **SHARES) as callers:
            reloads.start()
            while (now := time.monotonic() - start) < seconds:
                samples.append((now, resident_mb(server.process.pid)))
                time.sleep(min(0.25, seconds / 200))
            reloads.stop.set()
            reloads.join()
        died = server.process.poll() is not None
        held = {f"{name}_mb": 0.0 if died else server.metric(f"edgewise_{name}_bytes") / 2**20
                for name in ("working_memory", "allocator_used", "allocator_free")}
    grown, over_idle = growth(samples), float(later(samples, 0.1)[1].max()) - idle
    for detail in [*callers.details, *reloads.failed]:
        print(f"  {detail}", file=sys.stderr)
    figures = {**callers.figures, **callers.troubles, "reloads": reloads.count, "failed_reloads": len(reloads.failed),
               "idle_mb": idle, "resident_mb": samples[-1][1], "over_idle_mb": over_idle, **held,
               "growth_mb_per_minute": grown}
    troubles = sum(callers.troubles.values()) + len(reloads.failed) + died
    goals = {"growth_mb_per_minute": goal(grown, "at least", 4 * MOST_GROWTH) if library else
             goal(grown, "at most", MOST_GROWTH)}
    if not library:
        goals["over_idle_mb"] = goal(over_idle, "at most", MOST_OVER_IDLE)
        goals["troubles"] = goal(troubles, "at most", 0)
        goals["reloads"] = goal(reloads.count, "at least", 1)
    run.row(case, figures, **goals)


def scenario(run):
    run.marked = Marked(run.new_folder(), MODELS)
    if run.wants("mixed"):
        soak(run, "mixed", run.seconds)
    if run.wants("planted leak"):
        soak(run, "planted leak", run.seconds / 3, pathlib.Path(run.args.bin) / "libleaking_malloc.so")


if __name__ == "__main__":
    sys.exit(main("soak", __doc__, scenario, seconds=600))
