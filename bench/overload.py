#!/usr/bin/env python3
"""More requests than the server can answer: 2, 5 and 10 times its peak, at random moments.

    ./dev bench overload [--seconds 4] [--only 'long 2x'] [--json FILE]

For the bundled models `long` and `sentiment`. The deadline is 20 times the median latency of an unloaded server, and at
least 200 ms. Before each overload the peak is measured (32 clients that call in turn), and after it 0.8 of the peak is
offered. Then the peak is measured again: a machine drifts, and the overload is compared with the mean of both.

The cases named `shared` offer 1, 1.5 and 2 times the peak of `sentiment` while three processes burn the server's core, so
that it gets about a quarter of it; the peak is that under the same competition. Figures of a row:

peak, peak_before     requests a second: the mean, and the first, of which `offered` is a multiple
goodput_over_peak     answers in time a second, over the peak; the first second of the overload left out
worst_second          the same of the worst second
for_nobody            compute time of requests that ended late or cancelled, over the CPU time of the server
share                 of its core that the server had in the overload; share_at_peak: while the first peak was measured
recovery_seconds      from the end of the overload until 95 % of the calls of each quarter of a second are in time; null
                      where that did not come
call_us, echo_us      CPU time of the server a call, outside of the thread that computes; and the same of a server that
                      answers at once, at the same rate. Where nearly all are refused, a call is a refusal
late_p99_ms           how late the load generator was; where that is above a tenth of the deadline, the row is void
"""

import contextlib
import subprocess
import sys
import time

import numpy as np
from serving import SERVER_CORE, Cpu, data_of, goal, main, on_core, quantile

FACTORS = [2, 5, 10]
SHARED_FACTORS = [1, 1.5, 2]
SHARED_LEAST = 0.5
BURNERS, BURN_SECONDS = 3, 600
LEAST = {2: 0.95, 5: 0.93, 10: 0.90}  # goodput over the peak, for `long`
CLIENTS = 32
BIN_SECONDS = 0.25


def recovery(calls, deadline, seconds):
    """Seconds until every later bin has 95 % of its calls in time; None where the last one has not."""
    good, bins = calls.good(deadline), int(seconds / BIN_SECONDS)
    where = np.minimum(calls.due / BIN_SECONDS, bins - 1).astype(int)
    bad = [index for index in range(bins) if (where == index).any() and good[where == index].mean() < 0.95]
    if not bad:
        return 0.0
    return None if bad[-1] == bins - 1 else (bad[-1] + 1) * BIN_SECONDS


@contextlib.contextmanager
def shared_core():
    """The server's core is shared with processes that burn it. They end by themselves, too. Each is a session of its own:
    where Linux groups processes by session, a group gets as much as another, however many threads it has."""
    burn = f"import time\nend = time.monotonic() + {BURN_SECONDS}\nwhile time.monotonic() < end: pass"
    with contextlib.ExitStack() as stack, on_core(SERVER_CORE):
        for _ in range(BURNERS):
            burner = stack.enter_context(subprocess.Popen([sys.executable, "-c", burn], start_new_session=True))
            stack.callback(burner.kill)
        yield


def overload(run, server, echo, model, factor, deadline, shared=False):
    data, seconds = data_of(model), 1.5 * run.seconds

    def peak_now():
        return run.load(server, model, data, seconds=run.seconds, clients=CLIENTS).rate()

    with Cpu(server) as peak_cpu:
        before = peak_now()
    rate = factor * before
    nobody = server.metric("edgewise_cancelled_compute_seconds_total")
    with Cpu(server) as cpu:
        flood = run.start(server, model, data, seconds=seconds, rate=rate, deadline=deadline, flood=True)
        time.sleep(seconds + 0.1)
    nobody = server.metric("edgewise_cancelled_compute_seconds_total") - nobody
    after = run.load(server, model, data, seconds=run.seconds, rate=0.8 * before, deadline=deadline, flood=True)
    calls = flood.wait()
    peak = (before + peak_now()) / 2
    with Cpu(echo) as echo_cpu:
        echoes = run.load(echo, model, data, seconds=run.seconds / 2, rate=rate, deadline=deadline, flood=True)

    begin = min(1.0, seconds / 4)
    good = calls.due[calls.good(deadline)]
    goodput = (good >= begin).sum() / (seconds - begin)
    width = min(1.0, seconds - begin)
    worst = min(((good >= start) & (good < start + width)).sum() / width
                for start in np.arange(begin, seconds - width + 1e-9, width))
    refused = len(calls.ok) - calls.ok.sum()
    call_us = 1e6 * (cpu.seconds - cpu.busiest) / max(1, len(calls.ok))
    echo_us = 1e6 * echo_cpu.seconds / max(1, len(echoes.ok))
    late_ms = 1e3 * quantile(calls.begun - calls.due, 0.99)
    recovered = recovery(after, deadline, run.seconds)
    figures = {"peak": peak, "peak_before": before, "offered": rate, "deadline_ms": 1e3 * deadline, **calls.counts(),
               "goodput_over_peak": float(goodput / peak), "worst_second": float(worst / peak),
               "p50_ms": 1e3 * calls.quantile(0.5), "p99_ms": 1e3 * calls.quantile(0.99),
               "for_nobody": nobody / cpu.seconds, "share": cpu.seconds / (seconds + 0.1),
               "share_at_peak": peak_cpu.seconds / run.seconds, "recovery_seconds": recovered, "call_us": call_us,
               "echo_us": echo_us, "late_p99_ms": late_ms, "void": late_ms > 100 * deadline or calls.unsent > 0}
    least = LEAST[factor] if model == "long" else 0.9 * (1 - refused / seconds * echo_us / 1e6)
    if shared:
        return run.row(f"{model} shared {factor}x", figures,
                       goodput_over_peak=goal(figures["goodput_over_peak"], "at least", SHARED_LEAST))
    goals = {}
    if model == "long" or factor == 2:
        goals["goodput_over_peak"] = goal(figures["goodput_over_peak"], "at least", least)
    goals["for_nobody"] = goal(figures["for_nobody"], "at most", 0.05)
    goals["recovery_seconds"] = goal(recovered, "at most", 2)
    if refused > 0.8 * len(calls.ok):
        goals["refusal_over_echo"] = goal(call_us / echo_us, "at most", 1.5)
    run.row(f"{model} {factor}x", figures, **goals)


def scenario(run):
    with run.server() as server, run.echo() as echo:
        for model in ("long", "sentiment"):
            factors = [factor for factor in FACTORS if run.wants(f"{model} {factor}x")]
            if factors:
                unloaded = run.load(server, model, data_of(model), seconds=run.seconds / 2).quantile(0.5)
            for factor in factors:
                overload(run, server, echo, model, factor, max(0.2, 20 * unloaded))
        shared = [factor for factor in SHARED_FACTORS if run.wants(f"sentiment shared {factor}x")]
        if shared:
            unloaded = run.load(server, "sentiment", data_of("sentiment"), seconds=run.seconds / 2).quantile(0.5)
            with shared_core():
                for factor in shared:
                    overload(run, server, echo, "sentiment", factor, max(0.2, 20 * unloaded), shared=True)


if __name__ == "__main__":
    sys.exit(main("overload", __doc__, scenario, seconds=4))
