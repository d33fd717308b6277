#!/usr/bin/env python3
"""As much as the deadline allows: how often it is met, and how near the choice is to the largest that meets it.

    ./dev bench fit_deadline [--seconds 6] [--only 4x] [--json FILE]

Samples of the bundled model `long`: the deadlines are 1.5, 4 and 16 times the p99 latency of one sample, at least 20 ms.
Edges of one sample of a model of random weights whose time is mostly that of its edges: the deadlines are 1.5 and 2 times
the p99 latency under a cap of a sixteenth of its own edges. One client asks, each call with `fit_deadline`. Then explicit
numbers of samples, or caps, are asked for: the largest whose median latency meets the deadline is what could have been
had. Figures of a row: met, the share of calls in time; chosen, the median number; largest; chosen_over_largest.
"""

import sys

import numpy as np
from sbm_models import edges_model
from serving import data_of, goal, main

FACTORS = (1.5, 4, 16)
EDGE_FACTORS = (1.5, 2)
FEWEST = 1 / 16  # of the edges: the server goes no lower
MOST = 256  # samples of a request


def largest_in_time(meets, low, high, most):
    """By bisection between `low` and `high`, which is doubled up to `most` while it meets the deadline."""
    while high < most and meets(high):
        low, high = high, min(most, 2 * high)
    if high == most and meets(most):
        return most
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def cases(run, ask, name, factors, flags, numbers, number_flag, low, most, shortest):
    """`flags`: of the least choice; `numbers(calls)`: what the lever moves, of each call."""
    p99 = ask(run.seconds / 2, flags=flags).quantile(0.99)
    for factor in factors:
        case = f"{name}{factor:g}x"
        if not run.wants(case):
            continue
        deadline = max(shortest, factor * p99)

        def meets(number, deadline=deadline):
            calls = ask(max(run.seconds / 6, 4 * deadline), flags=[f"{number_flag}={number}"])
            return calls.quantile(0.5) <= deadline

        calls = ask(run.seconds, deadline, ["--fit_deadline", *(["--samples=1"] if name else [])])
        good = calls.good(deadline)
        chosen = float(np.median(numbers(calls)[good])) if good.any() else 0.0
        largest = largest_in_time(meets, low, min(most, max(low + 2, int(2 * chosen))), most)
        share = chosen / largest if largest else None
        run.row(case, {"least_p99_ms": 1e3 * p99, "deadline_ms": 1e3 * deadline, **calls.counts(),
                       "met": float(good.mean()), "p50_ms": 1e3 * calls.quantile(0.5), "chosen": chosen,
                       "largest": largest},
                met=goal(good.mean(), "at least", 0.99), chosen_over_largest=goal(share, "at least", 0.7))


def asking(run, server, model, data):
    def ask(seconds, deadline=0, flags=()):
        return run.load(server, model, data, seconds=seconds, deadline=deadline, flags=["--warmup=0", *flags])

    return ask


def scenario(run):
    if any(run.wants(f"{factor:g}x") for factor in FACTORS):
        with run.server() as server:
            ask = asking(run, server, "long", data_of("long"))
            ask(run.seconds / 2)  # the server learns what requests take
            cases(run, ask, "", FACTORS, ["--samples=1"], lambda calls: calls.samples, "--samples", 0, MOST, 0.02)
    if any(run.wants(f"edges {factor:g}x") for factor in EDGE_FACTORS):
        repository, model, data = edges_model(run.new_folder())
        with run.server(repository) as server:
            ask = asking(run, server, model, data)
            own = int(np.median(ask(run.seconds / 2).edges))
            least = int(FEWEST * own)
            cases(run, ask, "edges ", EDGE_FACTORS, [f"--max_edges={least}"], lambda calls: calls.edges, "--max_edges",
                  least, own, 0.0)


if __name__ == "__main__":
    sys.exit(main("fit_deadline", __doc__, scenario, seconds=6))
