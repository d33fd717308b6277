#!/usr/bin/env python3
"""Small requests beside large ones, and inputs of many lengths at once.

    ./dev bench mixed [--seconds 12] [--only beside|generations|lengths] [--json FILE]

`sentiment` beside `long`: 20 requests of `sentiment` a second, at random moments, alone and beside 2 clients of `long`
that call in turn for 256 samples; first with priority 1, then with the default. Compared with the 2 clients alone.

`sentiment` beside `generations`: the same with priority 1, beside 16 clients that generate with `gpt2`, a model of random
weights in the shape of GPT-2 small. Its tokens take longer than a step may.

`lengths`: `long` over texts of 64 to 4,095 random words, their lengths log-uniform, from 8 clients that call in turn; and
the same with each 8 texts as long as their longest, all words valid, which is what padding them would compute. Both take
turns, also with every pair attended (`dense`). A ratio is the median over rounds of inputs a second.
"""

import json
import math
import shutil
import sys
import time

import numpy as np
from random_models import GPT2_SMALL, write_gpt2
from serving import EXAMPLES, Calls, data_of, goal, main

RATE = 20
LARGE = 2
GENERATIONS, NEW_TOKENS = 16, 24
SHORTEST, LONGEST, GROUP = 64, 4095, 8
WORDS = 883  # of `long`; below 3 it has its pad, unknown word and CLS token


def figures(calls):
    return {**calls.counts(), "p50_ms": 1e3 * calls.quantile(0.5), "p99_ms": 1e3 * calls.quantile(0.99)}


def small(run, server, flags=()):
    return run.load(server, "sentiment", data_of("sentiment"), seconds=run.seconds, rate=RATE, flags=flags)


def beside(run, server):
    """Rows of `sentiment` alone and beside `long`."""

    def start_large():
        return run.start(server, "long", data_of("long"), seconds=run.seconds, clients=LARGE,
                         flags=[f"--samples={run.args.samples}", "--warmup=0"])

    unloaded = small(run, server)
    run.row("sentiment alone", figures(unloaded))
    alone = start_large().wait()
    run.row("long alone", {**figures(alone), "requests_per_second": alone.rate()})
    for name, flags, steps in (("priority 1", ["--priority=1"], 3), ("default", [], 10)):
        large = start_large()
        time.sleep(0.3)
        calls = small(run, server, [*flags, "--warmup=0"])
        large = large.wait()
        above = 1e3 * (calls.quantile(0.99) - unloaded.quantile(0.99))
        run.row(f"sentiment {name}", {**figures(calls), "p99_above_unloaded_ms": above},
                steps_above_unloaded=goal(above / run.args.max_step_ms if calls.ok.any() else None, "at most", steps))
        run.row(f"long beside {name}", {**figures(large), "requests_per_second": large.rate()},
                throughput_kept=goal(large.rate() / alone.rate(), "at least", 0.8),
                refused=goal(int((~large.ok).sum()), "at most", 0))


def generations(run):
    """Rows of `sentiment` alone and beside generations of a large model."""
    repository = run.new_folder()
    shutil.copytree(EXAMPLES / "sentiment", repository / "sentiment")
    write_gpt2(repository / "gpt2", *(int(number) for number in run.args.shape.split(",")))
    random = np.random.default_rng(3)
    prompts = run.new_folder() / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"token_ids": random.integers(0, 65, 8).tolist()}) + "\n" for _ in range(16)))
    with run.server(repository) as server:

        def start_generations():
            return run.start(server, "gpt2", prompts, seconds=run.seconds, clients=GENERATIONS,
                             flags=[f"--new_tokens={NEW_TOKENS}", "--warmup=1"])

        unloaded = small(run, server)
        alone = start_generations().wait()
        run.row("gpt2 alone", {**figures(alone), "requests_per_second": alone.rate()})
        load = start_generations()
        time.sleep(1)  # the first texts are warm-up
        calls = small(run, server, ["--priority=1", "--warmup=0"])
        load = load.wait()
        above = 1e3 * (calls.quantile(0.99) - unloaded.quantile(0.99))
        run.row("sentiment beside gpt2", {**figures(calls), "p99_above_unloaded_ms": above},
                steps_above_unloaded=goal(above / run.args.max_step_ms if calls.ok.any() else None, "at most", 3))
        run.row("gpt2 beside sentiment", {**figures(load), "requests_per_second": load.rate()},
                throughput_kept=goal(load.rate() / alone.rate(), "at least", 0.8))


def write_texts(path, lengths):
    random = np.random.default_rng(5)
    path.write_text("".join(json.dumps({"token_ids": random.integers(3, WORDS, length).tolist()}) + "\n"
                            for length in lengths))
    return path


def lengths_of(count):
    """Log-uniform lengths, and each group's longest in the place of its members."""
    random = np.random.default_rng(4)
    own = np.exp(random.uniform(math.log(SHORTEST), math.log(LONGEST), (count // GROUP, GROUP))).astype(int)
    return own.ravel(), np.repeat(own.max(1), GROUP)


def lengths(run, server):
    """Rows of texts of many lengths."""
    folder, counts = run.new_folder(), lengths_of(run.args.inputs)
    texts = {name: write_texts(folder / name, each) for name, each in zip(("mixed", "padded"), counts)}
    for name, flags in (("lengths", []), ("lengths dense", ["--dense"])):
        rates, parts = {"mixed": [], "padded": []}, []
        end = time.monotonic() + run.seconds
        while not rates["padded"] or time.monotonic() < end:
            for kind, path in texts.items():
                calls = run.load(server, "long", path, seconds=300, clients=GROUP,
                                 flags=[f"--requests={run.args.inputs}", "--warmup=1", *flags])
                rates[kind].append(calls.rate())
                parts.append(calls)
        ratio = float(np.median(np.array(rates["mixed"]) / np.array(rates["padded"])))
        goals = {"inputs_over_padded": goal(ratio, "at least", 1.8)} if name == "lengths" else {}
        run.row(name, {"mixed_per_second": float(np.median(rates["mixed"])),
                       "padded_per_second": float(np.median(rates["padded"])), "inputs_over_padded": ratio,
                       "tokens_over_padded": float(counts[0].sum() / counts[1].sum()), "rounds": len(rates["mixed"]),
                       **Calls.joined(parts).counts()}, **goals)


def scenario(run):
    with run.server() as server:
        if run.wants("beside"):
            beside(run, server)
        if run.wants("lengths"):
            lengths(run, server)
    if run.wants("generations"):
        generations(run)


def add_flags(parser):
    parser.add_argument("--samples", type=int, default=256, help="of a request of `long` (default %(default)s)")
    parser.add_argument("--inputs", type=int, default=64, help="texts of `lengths`, a multiple of 8 (default %(default)s)")
    parser.add_argument("--shape", default=",".join(str(number) for number in GPT2_SMALL),
                        help="layers, width, heads, inner width and words of `gpt2` (default %(default)s)")
    parser.add_argument("--max_step_ms", type=float, default=20, help="the server's longest step (default %(default)s)")


if __name__ == "__main__":
    sys.exit(main("mixed", __doc__, scenario, seconds=12, add_flags=add_flags))
