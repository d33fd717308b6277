#!/usr/bin/env python3
"""A polite client beside a greedy one.

    ./dev bench fairness [--seconds 10] [--json FILE]

The model is `long`. The polite client sends 10 requests a second, at random moments, each with a deadline of 200 ms;
the greedy one ten times what the server can answer (measured before: 32 clients that call in turn), with a deadline of
20 s. Each has a bearer token of its own, so that the server can tell them apart.
"""

import sys
import time

from serving import data_of, goal, main

RATE, DEADLINE, FACTOR = 10, 0.2, 10
GREEDY_DEADLINE = 20
DATA = data_of("long")


def scenario(run):
    folder = run.new_folder()
    tokens = {name: folder / name for name in ("polite", "greedy")}
    for name, path in tokens.items():
        path.write_text(f"token-of-the-{name}-client\n")
        path.chmod(0o600)
    allowed = folder / "tokens"
    allowed.write_text("".join(path.read_text() for path in tokens.values()))
    allowed.chmod(0o600)

    def polite(server):
        calls = run.load(server, "long", DATA, seconds=run.seconds, rate=RATE, deadline=DEADLINE,
                         flags=[f"--token_file={tokens['polite']}", "--warmup=0"])
        return calls, float(calls.good(DEADLINE).sum() / max(1, len(calls.ok)))

    def figures(calls, share):
        return {**calls.counts(), "in_time": share, "p50_ms": 1e3 * calls.quantile(0.5), "p99_ms": 1e3 * calls.quantile(0.99)}

    with run.server(flags=[f"--auth_token_file={allowed}"], token_file=tokens["polite"]) as server:
        greedy = [f"--token_file={tokens['greedy']}"]
        peak = run.load(server, "long", DATA, seconds=run.seconds / 2, clients=32, flags=greedy).rate()
        if run.wants("alone"):
            run.row("polite alone", figures(*polite(server)))
        if run.wants("beside greedy"):
            rate = FACTOR * peak
            flood = run.start(server, "long", DATA, seconds=run.seconds + 1.5, rate=rate, deadline=GREEDY_DEADLINE,
                              flags=greedy)
            time.sleep(1)
            calls, share = polite(server)
            run.row("polite beside greedy", {"peak": peak, "offered": rate, **figures(calls, share)},
                    in_time=goal(share, "at least", 0.95))
            others = flood.wait()
            run.row("greedy", {**others.counts(), "answers_over_peak": others.rate() / peak})


if __name__ == "__main__":
    sys.exit(main("fairness", __doc__, scenario, seconds=10))
