"""The part of bench/models.py that times dense models beside other engines, which says what is compared.

Engines run in turns, round by round; a process is stopped between its turns, so that its spinning threads take nothing
from the others. For a peer, the call in its own process counts, with inputs and outputs bound where they can be.
"""

import math
import os
import pathlib
import signal
import statistics
import threading
import time

import numpy as np
from peer_processes import Missing, Ours, start_peers
from random_models import BERT_BASE, GPT2_SMALL, MINILM, write_bert, write_gpt2

from evaluation import stubs  # random_models made tools importable
from evaluation.server import Server

ENCODERS = {"bert-base": BERT_BASE, "minilm": MINILM}
DECODERS = {"gpt2": GPT2_SMALL}
LENGTHS = [16, 64, 128, 512]
AT_ONCE = 16
PROMPTS = [  # task, tokens, new ones, texts
    ("prefill", 32, 1, 1), ("prefill", 512, 1, 1), ("decode", 32, 17, 1),
    ("prefill", 32, 1, AT_ONCE), ("prefill", 128, 1, AT_ONCE), ("generate", 32, 32, AT_ONCE),
]
WORDS = 30000  # of the texts, which are known to every model
PEERS = {"encoders": ["onnxruntime", "openvino", "torch-encoder"],
         "decoders": ["ctranslate2", "llama.cpp", "torch-decoder"]}
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.3}
MAY_DIFFER = {"llama.cpp": 0.25}  # of the texts: its GELU, from a table in half precision, decides close ones
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
READ_BYTES = 1 << 28  # a thread, beyond any cache


def cases():
    """Every row: its model, its task, the tokens of its texts, how many are computed at once, and new tokens."""
    mixed = LENGTHS * (AT_ONCE // len(LENGTHS))
    found = []

    def add(kind, model, name, task, texts, at_once, new):
        found.append({"kind": kind, "name": f"{model} {name}", "model": model, "task": task, "texts": texts,
                      "at_once": at_once, "new": new})

    for model in ENCODERS:
        for length in LENGTHS:
            add("encoders", model, f"{length} tokens", "dense encoder", [length], 1, 0)
        add("encoders", model, "mixed, 1 at a time", "mixed lengths, 1 at a time", mixed, 1, 0)
        add("encoders", model, f"mixed, {AT_ONCE} at once", f"{AT_ONCE} texts of mixed lengths", mixed, AT_ONCE, 0)
    for model in DECODERS:
        for task, tokens, new, at_once in PROMPTS:
            suffix = f", {at_once} at once" if at_once > 1 else ""
            add("decoders", model, f"{task} {tokens}{suffix}", task + suffix, [tokens] * at_once, at_once, new)
    random = np.random.default_rng(2)
    for case in found:
        case["ids"] = [random.integers(1, WORDS, tokens).tolist() for tokens in case["texts"]]
    return found


def write_models(repository, chosen):
    """{model: how many numbers are read for a new token} of language models."""
    numbers, models = {}, {case["model"] for case in chosen}
    for name in models & ENCODERS.keys():
        write_bert(repository / name, *ENCODERS[name])
    for name in models & DECODERS.keys():
        numbers[name] = write_gpt2(repository / name, *DECODERS[name])
    return numbers


def differs(case, name, weights, ours, theirs):
    """Empty where a peer's answer is ours, else what differs. Tokens are not compared where weights are rounded."""
    if case["new"] == 0:
        error = float(np.abs(np.subtract(theirs, ours)).max() / np.abs(ours).max())
        most = TOLERANCE[weights]
        return "" if error <= most else f"logits differ by {error:.1e} of the largest, more than {most:g}"
    differing = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if mine != other]
    if any(len(mine) != len(other) for mine, other in differing) or (
            weights == "float32" and len(differing) > len(ours) * MAY_DIFFER.get(name, 0)):
        mine, other = differing[0]
        return f"tokens differ, of {len(differing)} texts: {other} instead of {mine}"
    return ""


class Reader:
    """Bytes a second that threads read from memory: NumPy's sum of integers, its fastest pass over an array."""

    def __init__(self, threads):
        self.parts = [np.ones(READ_BYTES // 8, np.int64) for _ in range(threads)]

    def rate(self):
        start = time.perf_counter()
        workers = [threading.Thread(target=np.add.reduce, args=(part,)) for part in self.parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return len(self.parts) * READ_BYTES / (time.perf_counter() - start)


def measure(case, engines, args, weight_bytes):
    """One row: every engine's answer compared with ours, then turns."""
    measured = "cpu" if args.cpu else "wall"
    row = {key: case[key] for key in ("name", "model", "task", "texts", "at_once", "new")}
    row |= {"threads": threads_of(args), "measured": measured, "errors": {}}
    times, bandwidth, answers = {name: [] for name in engines}, [], {}
    for name, engine in engines.items():
        try:
            with engine:
                engine.prepare(case)
                answers[name] = engine.answer()
            wrong = differs(case, name, args.weights, answers["ours"], answers[name])
        except Missing as reason:
            wrong = str(reason)
        if wrong:
            row["errors"][name] = wrong
    running = {name: engine for name, engine in engines.items() if name not in row["errors"]}
    is_read = measured == "wall" and case["new"] > 1 and case["at_once"] == 1
    reader = Reader(threads_of(args)) if is_read else None
    for _ in range(args.rounds):
        for name, engine in running.items():
            with engine:
                times[name].append(engine.turn()[measured])
        if reader:
            bandwidth.append(max(reader.rate() for _ in range(3)))
    row["milliseconds"] = {name: round(1e3 * statistics.median(times[name]), 3) for name in running}
    row["over_ours"] = {name: round(statistics.median(a / b for a, b in zip(times[name], times["ours"])), 3)
                        for name in running if name != "ours"}
    if reader:
        shares = [weight_bytes / seconds / rate for seconds, rate in zip(times["ours"], bandwidth)]
        row["read_gigabytes_per_second"] = round(statistics.median(bandwidth) / 1e9, 2)
        row["bandwidth_share"] = round(statistics.median(shares), 3)
    return row


def unpadded(alone, ours):
    """Ratios of peers that take the texts one after another, and so need no padding, to ours with all at once."""
    return {name: round(milliseconds / ours, 3) for name, milliseconds in alone.items() if name != "ours"}


def threads_of(args):
    return 1 if args.cpu else 2


def show(row):
    times = row["milliseconds"]
    print(f"{row['name']:30} {row['measured']} of {row['threads']}  ours {times['ours']:9.2f} ms"
          + "".join(f"  {name} {times[name]:.2f} ({ratio:.2f})" for name, ratio in row["over_ours"].items()),
          flush=True)
    if "bandwidth_share" in row:
        rate = row["read_gigabytes_per_second"]
        print(f"  reads its weights at {row['bandwidth_share']:.2f} of {rate} GB/s", flush=True)
    if row.get("unpadded_over_ours"):
        print("  one after another they take, over ours at once:"
              + "".join(f"  {name} ({ratio:.2f})" for name, ratio in row["unpadded_over_ours"].items()), flush=True)
    for name, wrong in row["errors"].items():
        print(f"  error: {name}: {wrong}", flush=True)


def run(args, folder, chosen, versions):
    """The rows of these cases, as they come."""
    repository = pathlib.Path(folder) / "dense"
    numbers, made_stubs, threads = write_models(repository, chosen), stubs.make(folder), threads_of(args)
    for kind, names in PEERS.items():
        mine = [case for case in chosen if case["kind"] == kind]
        if not mine:
            continue
        with Server(args.bin, repository, folder, [f"--threads={threads}", "--device=cpu",
                                                   f"--weights={args.weights}"]) as server:
            peers = start_peers(args.python, names, threads, args.weights, repository, versions)
            engines = {"ours": Ours(server, made_stubs, AT_ONCE)} | peers
            alone = {}  # milliseconds of a model's texts one after another
            try:
                for case in mine:
                    weight_bytes = numbers.get(case["model"], 0) * WEIGHT_BYTES[args.weights]
                    row = measure(case, engines, args, weight_bytes)
                    if case["new"] == 0 and len(case["texts"]) > 1:
                        if case["at_once"] == 1:
                            alone[case["model"]] = row["milliseconds"]
                        else:
                            row["unpadded_over_ours"] = unpadded(alone.get(case["model"], {}), row["milliseconds"]["ours"])
                    show(row)
                    yield row
            finally:
                for peer in peers.values():
                    peer.close()
                os.kill(server.process.pid, signal.SIGCONT)


def figures(rows):
    """Geometric means and least ratios against the best peer of each row."""
    best = {}
    for row in rows:
        if row["over_ours"]:
            best.setdefault(f"{row['task']}, {row['measured']}, the best peer over ours", []).append(
                min(row["over_ours"].values()))
    return {name: {"rows": len(ratios), "least": min(ratios),
                   "geometric_mean": round(math.exp(statistics.fmean(map(math.log, ratios))), 3)}
            for name, ratios in best.items()}
