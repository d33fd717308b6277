#!/usr/bin/env python3
"""1, 4 and 16 generations at once: tokens a second in all.

    ./dev bench generations [--seconds 6] [--only nano] [--json FILE]

Models: `shakespeare-ssa`, bundled; `nano` of 10.8 million random parameters in 6 layers of 384; `gpt2`, the shape of
GPT-2 small. Prompts are short and generations end within the context. Numbers of generations take turns, in rounds, until
each has had --seconds; a ratio is the median over rounds of tokens a second over those of one generation.
"""

import json
import shutil
import sys

import numpy as np
from random_models import GPT2_SMALL, write_gpt2
from serving import EXAMPLES, Calls, Cpu, goal, main

AT_ONCE = [1, 4, 16]
MODELS = {"shakespeare-ssa": 100, "nano": 64, "gpt2": 16}  # new tokens of a generation
SHAPES = {"nano": (6, 384, 6, 1536, 65), "gpt2": GPT2_SMALL}  # as write_gpt2 takes them
GOALS = {("nano", 4): 2.5, ("nano", 16): 6, ("gpt2", 4): 2.5, ("gpt2", 16): 5}


def measure(run, server, model, prompts):
    rates, cpu_ms = {at_once: [] for at_once in AT_ONCE}, {at_once: [] for at_once in AT_ONCE}
    parts, spent = {at_once: [] for at_once in AT_ONCE}, 0.0
    while spent < len(AT_ONCE) * run.seconds:
        for at_once in AT_ONCE:
            flags = [f"--new_tokens={MODELS[model]}", f"--requests={max(at_once, 4)}", f"--warmup={1 if spent == 0 else 0}"]
            with Cpu(server) as cpu:
                calls = run.load(server, model, prompts, seconds=300, clients=at_once, flags=flags)
            rates[at_once].append(calls.outputs.sum() / calls.end.max())
            cpu_ms[at_once].append(1e3 * cpu.seconds / max(1, calls.outputs.sum()))
            parts[at_once].append(calls)
            spent += calls.end.max()
    for at_once in AT_ONCE:
        over_one = float(np.median(np.array(rates[at_once]) / np.array(rates[1])))
        goals = {}
        if (model, at_once) in GOALS:
            goals["tokens_over_one"] = goal(over_one, "at least", GOALS[model, at_once])
        run.row(f"{model} {at_once}", {
            "tokens_per_second": float(np.median(rates[at_once])), "over_one": over_one,
            "cpu_ms_a_token": float(np.median(cpu_ms[at_once])), "rounds": len(rates[at_once]),
            **Calls.joined(parts[at_once]).counts()}, **goals)


def scenario(run):
    repository, models = run.new_folder(), [model for model in MODELS if run.wants(model)]
    for model in models:
        if model == "shakespeare-ssa":
            shutil.copytree(EXAMPLES / model, repository / model)
        else:
            write_gpt2(repository / model, *SHAPES[model])
    random = np.random.default_rng(3)
    prompts = run.new_folder() / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"token_ids": random.integers(0, 65, 8).tolist()}) + "\n" for _ in range(16)))
    with run.server(repository) as server:
        for model in models:
            measure(run, server, model, prompts)


if __name__ == "__main__":
    sys.exit(main("generations", __doc__, scenario, seconds=6))
