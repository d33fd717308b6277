#!/usr/bin/env python3
"""As many samples as the deadline allows: how often it is met, and how near the number is to the largest that meets it.

    ./dev bench fit_deadline [--seconds 6] [--only 4x] [--json FILE]

For the bundled model `long` and one client. The deadlines are 1.5, 4 and 16 times the p99 latency of one sample, at least
20 ms. Each call asks with `fit_deadline`. Then explicit numbers of samples are asked for, from the median choice up: the
largest whose median latency meets the deadline is what could have been had. Figures of a row: met, the share of calls in
time; chosen, the median number of samples; largest; chosen_over_largest.
"""

import sys

import numpy as np
from serving import data_of, goal, main

MODEL = "long"
FACTORS = (1.5, 4, 16)
MOST = 256  # samples of a request


def ask(run, server, seconds, deadline=0, flags=()):
    return run.load(server, MODEL, data_of(MODEL), seconds=seconds, deadline=deadline, flags=["--warmup=0", *flags])


def largest_in_time(run, server, deadline, guess):
    """By bisection over the median latency of explicit numbers."""

    def meets(samples):
        return ask(run, server, max(run.seconds / 6, 4 * deadline), flags=[f"--samples={samples}"]).quantile(0.5) <= deadline

    low, high = 0, max(2, 2 * guess)
    while high < MOST and meets(high):
        low, high = high, 2 * high
    high = min(high, MOST + 1)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def scenario(run):
    with run.server() as server:
        ask(run, server, run.seconds / 2)  # the server learns what requests take
        p99 = ask(run, server, run.seconds / 2, flags=["--samples=1"]).quantile(0.99)
        for factor in FACTORS:
            case = f"{factor:g}x"
            if not run.wants(case):
                continue
            deadline = max(0.02, factor * p99)
            calls = ask(run, server, run.seconds, deadline, ["--fit_deadline"])
            good = calls.good(deadline)
            chosen = float(np.median(calls.samples[good])) if good.any() else 0.0
            largest = largest_in_time(run, server, deadline, int(chosen))
            share = chosen / largest if largest else None
            run.row(case, {"one_sample_p99_ms": 1e3 * p99, "deadline_ms": 1e3 * deadline, **calls.counts(),
                           "met": float(good.mean()), "p50_ms": 1e3 * calls.quantile(0.5), "chosen": chosen,
                           "largest": largest},
                    met=goal(good.mean(), "at least", 0.99), chosen_over_largest=goal(share, "at least", 0.7))


if __name__ == "__main__":
    sys.exit(main("fit_deadline", __doc__, scenario, seconds=6))
