#!/usr/bin/env python3
"""Requests of many samples at twice the load that the server can answer, without and with consent to fewer samples.

    ./dev bench degraded [--seconds 6] [--samples 16] [--json FILE]

For the bundled model `long`. The deadline is 20 times the median latency of an unloaded server, and at least 200 ms; the
peak is measured with 8 clients that call in turn. Then twice the peak is offered at random moments, with `asked` samples
each: first all of them or nothing, then under `allow_degraded`. Figures of a row: good, the answers in time a second,
over the peak; samples, the mean of the answers in time.
"""

import sys

import numpy as np
from serving import data_of, goal, main

MODEL, FACTOR = "long", 2


def scenario(run):
    data, asked = data_of(MODEL), [f"--samples={run.args.samples}"]
    with run.server() as server:
        deadline = max(0.2, 20 * run.load(server, MODEL, data, seconds=run.seconds / 2, flags=asked).quantile(0.5))
        peak = run.load(server, MODEL, data, seconds=run.seconds / 2, clients=8, flags=asked).rate()
        served = {}
        for case, flags in (("all or nothing", []), ("by consent", ["--allow_degraded"])):
            calls = run.load(server, MODEL, data, seconds=run.seconds, rate=FACTOR * peak, deadline=deadline,
                             flags=[*asked, *flags, "--warmup=0"])
            good = calls.good(deadline)
            served[case] = good.sum() / run.seconds
            goals = {}
            if flags:
                ratio = served[case] / served["all or nothing"] if served["all or nothing"] else None
                goals["served_over_all_or_nothing"] = goal(ratio, "at least", 1.3)
            run.row(case, {"peak": peak, "offered": FACTOR * peak, "deadline_ms": 1e3 * deadline, **calls.counts(),
                           "good_over_peak": float(served[case] / peak), "p50_ms": 1e3 * calls.quantile(0.5),
                           "samples": float(np.mean(calls.samples[good])) if good.any() else 0.0}, **goals)


def add_flags(parser):
    parser.add_argument("--samples", type=int, default=16, help="of a request (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("degraded", __doc__, scenario, seconds=6, add_flags=add_flags))
