#!/usr/bin/env python3
"""1, 8 and 32 clients that call in turn: the gain from requests that are computed together.

    ./dev bench batching [--seconds 4] [--only sentiment] [--json FILE]

For the bundled models `sentiment` and `long`, for `empty`, a model whose forward pass is next to nothing, for a server of
the same build that computes each request alone (--max_batch_requests=1), and for one that only echoes. All run in turns,
in three rounds. Figures of a row:

forward_us            forward pass of an input: compute_us, shared by the inputs that were computed together
cpu_us, computing_us  CPU time of the server an input; the part of it that the thread that computes used
outside_ms            the client's median latency - compute_us: everything but the forward pass
"""

import json
import shutil
import sys

import numpy as np
from random_models import Weights, write_model
from serving import EXAMPLES, Calls, Cpu, data_of, goal, main

CLIENTS = [1, 8, 32]
ROUNDS = 3


def write_empty(folder):
    """`sentiment` with one layer of 8 columns."""
    config = json.loads((EXAMPLES / "sentiment/1/config.json").read_text())
    config |= {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8, "intermediate_size": 8,
               "attention": {"kind": "dense"}}
    config.pop("budget_shares", None)  # one for each layer
    weights = Weights(8)
    write_model(folder, config, weights.attention(0, 8) | weights.feed_forward(0, 8) | weights.norm("final_norm")
                | weights.linear("classifier.output", 2, 8)
                | {"embeddings.word.weight": weights.normal(config["vocab_size"], 8)})


class Case:
    """One server, model and number of clients; its loads so far."""

    def __init__(self, server, model, clients):
        self.server, self.model, self.clients = server, model, clients
        self.loads, self.rates, self.cpu, self.computing = [], [], 0.0, 0.0

    def turn(self, run):
        data = data_of("long" if self.model == "long" else "sentiment")
        with Cpu(self.server) as cpu:
            self.loads.append(run.load(self.server, self.model, data, seconds=run.seconds / ROUNDS, clients=self.clients))
        self.rates.append(self.loads[-1].rate())
        self.cpu, self.computing = self.cpu + cpu.seconds, self.computing + cpu.busiest

    def end(self):
        self.calls = Calls.joined(self.loads)
        self.rate = float(np.median(self.rates))
        self.outside = float(np.median((self.calls.latency - self.calls.compute)[self.calls.ok]))

    def figures(self):
        calls, inputs = self.calls, max(1, self.calls.ok.sum())
        return {"requests_per_second": self.rate, "p50_ms": 1e3 * calls.quantile(0.5), "p99_ms": 1e3 * calls.quantile(0.99),
                "forward_us": 1e6 * calls.forward(), "cpu_us": float(1e6 * self.cpu / inputs),
                "computing_us": float(1e6 * self.computing / inputs), "outside_ms": 1e3 * self.outside,
                "batch": float(calls.batch[calls.ok].mean()) if calls.ok.any() else 0.0, **calls.counts()}


def goals_of(name, cases):
    """Those of one case, as far as the cases it is compared with were run."""
    case, goals = cases[name], {}
    alone = cases.get(f"{name} alone")
    if name == "sentiment 1" and "echo 1" in cases:
        goals["outside_over_echo"] = goal(case.outside / cases["echo 1"].outside, "at most", 1.1)
    if name == "sentiment 32" and alone:
        goals["forward_over_alone"] = goal(case.calls.forward() / alone.calls.forward(), "at most", 0.5)
    if name == "sentiment 32" and "empty 32" in cases:
        goals["requests_over_empty_forward"] = goal(case.rate / cases["empty 32"].rate, "at least", 0.75)
    if name == "long 32" and alone:
        goals["requests_over_alone"] = goal(case.rate / alone.rate, "at least", 0.98)
    return goals


def measure(run, server, single, echo):
    wanted = [(f"{model} {clients}", server, model, clients) for model in ("sentiment", "long") for clients in CLIENTS]
    wanted += [("empty 32", server, "empty", 32), ("echo 1", echo, "echo", 1), ("echo 32", echo, "echo", 32)]
    wanted += [(f"{model} 32 alone", single, model, 32) for model in ("sentiment", "long")]
    cases = {name: Case(*case) for name, *case in wanted if run.wants(name)}
    for _ in range(ROUNDS):
        for case in cases.values():
            case.turn(run)
    for case in cases.values():
        case.end()
    for name, case in cases.items():
        run.row(name, case.figures(), **goals_of(name, cases))


def scenario(run):
    repository = run.new_folder()
    for model in ("sentiment", "long"):
        shutil.copytree(EXAMPLES / model, repository / model)
    write_empty(repository / "empty")
    with run.server(repository) as server, run.server(repository, ["--max_batch_requests=1"]) as single, run.echo() as echo:
        measure(run, server, single, echo)


if __name__ == "__main__":
    sys.exit(main("batching", __doc__, scenario, seconds=4))
