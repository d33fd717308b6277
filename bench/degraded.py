#!/usr/bin/env python3
"""Requests at twice the load that the server can answer, without and with consent to less than they ask for.

    ./dev bench degraded [--seconds 6] [--samples 16] [--only edges] [--json FILE]

Many samples of the bundled model `long`; and one sample of a model of random weights whose time is mostly that of its
edges, where a lower cap is all that can give way. The deadline is 20 times the median latency of an unloaded server, and
at least 200 ms; the peak is measured with 8 clients that call in turn. Then twice the peak is offered at random moments:
first all or nothing, then under `allow_degraded`. Figures of a row: good_over_peak, the answers in time a second over the
peak; samples and edges, the means of the answers in time.
"""

import sys

import numpy as np
from sbm_models import edges_model
from serving import EXAMPLES, data_of, goal, main

FACTOR = 2


def compare(run, name, server, model, data, asked, least):
    """`least`: answers in time by consent over those without."""
    deadline = max(0.2, 20 * run.load(server, model, data, seconds=run.seconds / 2, flags=asked).quantile(0.5))
    peak = run.load(server, model, data, seconds=run.seconds / 2, clients=8, flags=asked).rate()
    served = {}
    for case, flags in (("all or nothing", []), ("by consent", ["--allow_degraded"])):
        calls = run.load(server, model, data, seconds=run.seconds, rate=FACTOR * peak, deadline=deadline,
                         flags=[*asked, *flags, "--warmup=0"])
        good = calls.good(deadline)
        served[case] = good.sum() / run.seconds
        goals = {}
        if flags:
            ratio = served[case] / served["all or nothing"] if served["all or nothing"] else None
            goals["served_over_all_or_nothing"] = goal(ratio, "at least", least)
        means = {what: float(np.mean(values[good])) if good.any() else 0.0
                 for what, values in (("samples", calls.samples), ("edges", calls.edges))}
        run.row(name + case, {"peak": peak, "offered": FACTOR * peak, "deadline_ms": 1e3 * deadline, **calls.counts(),
                              "good_over_peak": float(served[case] / peak), "p50_ms": 1e3 * calls.quantile(0.5), **means},
                **goals)


def scenario(run):
    repository, model, data = edges_model(run.new_folder())
    for name, models, *what in (("", EXAMPLES, "long", data_of("long"), [f"--samples={run.args.samples}"], 1.3),
                                ("edges: ", repository, model, data, [], 1.2)):
        if run.wants(name or "samples"):
            with run.server(models) as server:
                compare(run, name, server, *what)


def add_flags(parser):
    parser.add_argument("--samples", type=int, default=16, help="of a request of `long` (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("degraded", __doc__, scenario, seconds=6, add_flags=add_flags))
