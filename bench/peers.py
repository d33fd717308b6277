#!/usr/bin/env python3
"""Whole dense models beside ONNX Runtime, OpenVINO, CTranslate2, llama.cpp and PyTorch, on the CPU.

    ./dev bench peers --python PYTHON [--json FILE] [--rounds 7] [--only TEXT] [--weights float32|bfloat16|int8]

PYTHON is one with torch, onnx, onnxscript, onnxruntime, openvino, ctranslate2, transformers, llama-cpp-python and gguf;
an engine that it lacks is skipped, and the reason is printed. All have the same random weights and tokens. Encoders:
BERT-base and a small one, the mean of the tokens and a linear layer; their logits must agree to 1e-4 of the largest.
Decoder: the shape of GPT-2 small, prefill up to the first token, and decode after it, greedy; the tokens must be equal.
The encoders' last rows are 16 calls at once, four texts of each length. Our server answers them as they come, without
padding; the others get them as one batch, padded to the longest. The time is until all are answered.

A row where one differs says so, compares with the others, and makes the exit status 1. With --weights=bfloat16 or int8
every engine stores weights so, and rounds in its own way: logits may differ by a tenth or by three of the largest, and
tokens may differ. PyTorch and OpenVINO then compute in bfloat16 throughout.

Engines run in turns, round by round; a process is stopped between its turns, so that its spinning threads take nothing
from the others. Ours is the server: `compute_us` of an answer, and for decode the time between its messages. Of a peer
the call in its own process counts, with inputs and outputs bound where they can be. First the time on two threads, then
the CPU seconds of the process on one thread. A ratio is the median over rounds of a peer's over ours: above 1, ours is
faster.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from peer_engines import one_turn, span
from products import machine
from random_models import ROOT, Weights, write_model
from serving import process_cpu

from evaluation import stubs  # random_models made tools importable
from evaluation.server import Server

ENCODERS = {  # layers, width, heads, inner, words
    "bert-base": (12, 768, 12, 3072, 30522), "small": (4, 256, 4, 1024, 30522),
}
DECODER = (12, 768, 12, 3072, 50257)
LENGTHS = [16, 64, 128, 512]
PROMPTS = [(32, 1), (512, 1), (32, 17)]  # tokens, and new ones: one is prefill; 16 more are decode
ENCODER_PEERS = ["onnxruntime", "openvino", "torch-encoder"]
DECODER_PEERS = ["ctranslate2", "llama.cpp", "torch-decoder"]
RIVALS = ["onnxruntime", "openvino"]  # of encoders: the better of these two counts
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "int8": 0.3}
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
SECONDS = 0.3  # of a turn, about
READ_BYTES = 1 << 28  # a thread, beyond any cache


def write_encoder(folder, layers, width, heads, inner, words):
    weights = Weights(width, scale=width ** -0.5)
    tensors = {"embeddings.word.weight": weights.normal(words, width, scale=1.0),
               "embeddings.position.weight": weights.normal(max(LENGTHS), width, scale=1.0)}
    for layer in range(layers):
        tensors |= weights.attention(layer, width) | weights.feed_forward(layer, inner)
    # The mean of random rows is near zero: larger weights bring the logits near 1.
    tensors |= {"classifier.output.weight": weights.normal(4, width, scale=1.0),
                "classifier.output.bias": weights.normal(4)}
    write_model(folder, {
        "task": "sequence-classification", "vocab_size": words, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, "max_position_embeddings": max(LENGTHS),
        "norm_position": "post", "pad_token_id": -1, "pooling": {"kind": "mean", "divisor": "valid"}, "num_labels": 4,
        "attention": {"kind": "dense"}}, tensors)


def write_decoder(folder, layers, width, heads, inner, words):
    """Its matrices' bytes: each is read once for a token."""
    weights = Weights(width, scale=width ** -0.5)
    tensors = {"embeddings.word.weight": weights.normal(words, width),
               "embeddings.position.weight": weights.normal(1024, width)}
    for layer in range(layers):
        tensors |= weights.attention(layer, width) | weights.feed_forward(layer, inner)
    tensors |= weights.norm("final_norm")
    write_model(folder, {
        "task": "causal-lm", "vocab_size": words, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, "max_position_embeddings": 1024, "pad_token_id": -1,
        "attention": {"kind": "dense"}}, tensors)
    return sum(values.nbytes for name, values in tensors.items() if values.ndim == 2 and "position" not in name)


class Stoppable:
    """A process that runs inside `with`, and is stopped outside."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGCONT)
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGSTOP)


class Ours(Stoppable):
    """The server, asked over gRPC."""

    def __init__(self, server, made_stubs):
        super().__init__(server.process.pid)
        self.client = stubs.Client(server.address, made_stubs)

    def cpu(self):
        return process_cpu(self.pid)

    def prepare(self, case):
        messages = self.client.messages
        self.new, self.requests = case["new"], None
        if case["texts"] > 1:
            self.requests = [self.encode(case["model"], ids) for ids in case["ids"]]
            return
        sequence = messages.Sequence(token_ids=messages.TokenIds(values=case["ids"]))
        if self.new:
            self.request = messages.GenerateRequest(model=case["model"], prompt=sequence, max_new_tokens=self.new)
        else:
            self.request = self.encode(case["model"], case["ids"])

    def encode(self, model, ids):
        messages = self.client.messages
        sequence = messages.Sequence(token_ids=messages.TokenIds(values=ids))
        request = messages.PredictRequest(model=model, inputs=[messages.Input(sequence=sequence)])
        request.outputs.logits = True
        return request

    def at_once(self):
        calls = [self.client.service.Predict.future(request, timeout=stubs.CALL_SECONDS) for request in self.requests]
        return [call.result() for call in calls]

    def predict(self):
        return self.client.service.Predict(self.request, timeout=stubs.CALL_SECONDS)

    def generate(self):
        return self.client.service.Generate(self.request, timeout=stubs.CALL_SECONDS)

    def answer(self):
        if self.new:
            return [message.token_id for message in self.generate()]
        if self.requests:
            return [logit for answer in self.at_once() for logit in answer.predictions[0].logits]
        return list(self.predict().predictions[0].logits)

    def timed(self):
        stamps = [np.array([time.perf_counter(), self.cpu()])]
        if self.requests:
            self.at_once()
            return np.array([time.perf_counter(), self.cpu()]) - stamps[0]
        if not self.new:
            timing = self.predict().timing
            return timing.compute_us / 1e6, self.cpu() - stamps[0][1]
        for message in self.generate():
            stamps.append(np.array([time.perf_counter(), self.cpu()]))
        wall, cpu = span(stamps, self.new)
        return (message.timing.compute_us / 1e6 if self.new == 1 else wall), cpu

    def turn(self):
        return one_turn(self.timed, SECONDS)


class Missing(Exception):
    """Why a peer cannot take part."""


class Peer(Stoppable):
    """bench/peer_engines.py as a child."""

    def __init__(self, python, name, threads, weights, repository):
        self.repository = repository
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        script = pathlib.Path(__file__).with_name("peer_engines.py")
        with open(pathlib.Path(repository).parent / f"{name}.log", "ab") as log:
            self.child = subprocess.Popen([python, script, name, "--threads", str(threads), "--weights", weights],
                                          stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        super().__init__(self.child.pid)
        try:
            self.version = self.read()["version"]
        except Missing:
            self.close()
            raise
        self.__exit__()

    def read(self):
        line = self.child.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise Missing(answer["error"])
        return answer

    def ask(self, **asked):
        self.child.stdin.write(json.dumps(asked) + "\n")
        self.child.stdin.flush()
        return self.read()

    def prepare(self, case):
        folder = pathlib.Path(self.repository) / case["model"] / "1"
        self.ask(do="prepare", folder=str(folder), tokens=case["ids"], new=case["new"])

    def answer(self):
        return self.ask(do="answer")["answer"]

    def turn(self):
        return self.ask(do="time", seconds=SECONDS)

    def close(self):
        os.kill(self.pid, signal.SIGCONT)
        self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def start_peers(python, names, threads, weights, repository, versions):
    """{name: Peer} of those that can be imported; `versions` gets all, with the reason where one is skipped."""
    peers = {}
    for name in names:
        try:
            peers[name] = Peer(python, name, threads, weights, repository)
            versions[name] = peers[name].version
        except Missing as reason:
            versions[name] = f"skipped: {reason}"
            print(f"skipped: {name}: {reason}", flush=True)
    return peers


def differs(case, ours, theirs):
    """Empty where a peer's answer is ours, else what differs."""
    if case["new"]:
        same = theirs == ours if case["weights"] == "float32" else len(theirs) == len(ours)
        return "" if same else f"tokens differ: {theirs} instead of {ours}"
    error = float(np.abs(np.subtract(theirs, ours)).max() / np.abs(ours).max())
    most = TOLERANCE[case["weights"]]
    return "" if error <= most else f"logits differ by {error:.1e} of the largest, more than {most:g}"


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


def measure(case, engines, rounds, measured, reader):
    """One row: every engine's answer compared with ours, then turns."""
    row = {key: case[key] for key in ("model", "texts", "tokens", "new", "threads")}
    row |= {"measured": measured, "errors": {}}
    times, bandwidth, answers = {name: [] for name in engines}, [], {}
    for name, engine in engines.items():
        try:
            with engine:
                engine.prepare(case)
                answers[name] = engine.answer()
            wrong = differs(case, answers["ours"], answers[name])
        except Missing as reason:
            wrong = str(reason)
        if wrong:
            row["errors"][name] = wrong
    running = {name: engine for name, engine in engines.items() if name not in row["errors"]}
    for _ in range(rounds):
        for name, engine in running.items():
            with engine:
                times[name].append(engine.turn()[measured])
        if reader:
            bandwidth.append(max(reader.rate() for _ in range(3)))
    row["milliseconds"] = {name: round(1e3 * statistics.median(times[name]), 3) for name in running}
    row["over_ours"] = {name: round(statistics.median(a / b for a, b in zip(times[name], times["ours"])), 3)
                        for name in running if name != "ours"}
    if reader:
        shares = [case["bytes"] / seconds / rate for seconds, rate in zip(times["ours"], bandwidth)]
        row["read_gigabytes_per_second"] = round(statistics.median(bandwidth) / 1e9, 2)
        row["bandwidth_share"] = round(statistics.median(shares), 3)
    return row


def show(row):
    task = "encode" if row["new"] == 0 else "prefill" if row["new"] == 1 else "decode"
    times, texts = row["milliseconds"], f" of {row['texts']} texts" if row["texts"] > 1 else ""
    print(f"{row['model']:9} {task:7} {row['tokens']:4} tokens{texts}  {row['threads']} thread(s) {row['measured']:4}  "
          f"ours {times['ours']:9.2f} ms"
          + "".join(f"  {name} {times[name]:.2f} ({ratio:.2f})" for name, ratio in row["over_ours"].items()),
          flush=True)
    if "bandwidth_share" in row:
        rate = row["read_gigabytes_per_second"]
        print(f"  reads its weights at {row['bandwidth_share']:.2f} of {rate} GB/s", flush=True)
    for name, wrong in row["errors"].items():
        print(f"  error: {name}: {wrong}", flush=True)


def run(args, folder, versions):
    repository = pathlib.Path(folder) / "repository"
    for name, shape in ENCODERS.items():
        write_encoder(repository / name, *shape)
    weight_bytes = write_decoder(repository / "gpt2", *DECODER) * WEIGHT_BYTES[args.weights] // 4
    random = np.random.default_rng(2)
    mixed = LENGTHS * 4
    cases = [{"model": model, "texts": 1, "tokens": n, "new": 0} for model in ENCODERS for n in LENGTHS]
    cases += [{"model": model, "texts": len(mixed), "tokens": sum(mixed), "new": 0} for model in ENCODERS]
    cases += [{"model": "gpt2", "texts": 1, "tokens": n, "new": new, "bytes": weight_bytes} for n, new in PROMPTS]
    cases = [case for case in cases if args.only in f"{case['model']} {case['tokens']} {case['new']}"]
    for case in cases:
        case["weights"] = args.weights
        case["ids"] = random.integers(0, 30000, case["tokens"]).tolist()
        if case["texts"] > 1:
            ends = np.cumsum(mixed).tolist()
            case["ids"] = [case["ids"][end - n:end] for n, end in zip(mixed, ends)]
    rows, made_stubs = [], stubs.make(folder)
    for threads, measured in ((2, "wall"), (1, "cpu")):
        for names, chosen in ((ENCODER_PEERS, [case for case in cases if case["new"] == 0]),
                              (DECODER_PEERS, [case for case in cases if case["new"] > 0])):
            if not chosen:
                continue
            with Server(args.bin, repository, folder, [f"--threads={threads}", "--device=cpu",
                                                              f"--weights={args.weights}"]) as server:
                peers = start_peers(args.python, names, threads, args.weights, repository, versions)
                engines = {"ours": Ours(server, made_stubs)} | peers
                try:
                    for case in chosen:
                        reader = Reader(threads) if measured == "wall" and case["new"] > 1 else None
                        rows.append(measure(case | {"threads": threads}, engines, args.rounds, measured, reader))
                        show(rows[-1])
                finally:
                    for peer in peers.values():
                        peer.close()
                    os.kill(server.process.pid, signal.SIGCONT)
    return rows


def figures(rows):
    """Geometric means and least ratios against the best peer of each row."""
    found = {}
    for measured in ("wall", "cpu"):
        for task, chosen in (("dense encoder", [row for row in rows if row["new"] == 0 and row["texts"] == 1]),
                             ("16 texts of mixed lengths", [row for row in rows if row["texts"] > 1]),
                             ("prefill", [row for row in rows if row["new"] == 1]),
                             ("decode", [row for row in rows if row["new"] > 1])):
            best = []
            for row in chosen:
                ratios = [ratio for name, ratio in row["over_ours"].items() if row["new"] > 0 or name in RIVALS]
                if row["measured"] == measured and ratios:
                    best.append(min(ratios))
            if best:
                rivals = "the better of ONNX Runtime and OpenVINO" if chosen[0]["new"] == 0 else "the best peer"
                name = f"{task}, {measured}, {rivals} over ours"
                found[name] = {"rows": len(best), "least": min(best),
                               "geometric_mean": round(math.exp(statistics.fmean(map(math.log, best))), 3)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/bin"), help="folder of edgewise-server")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose 'MODEL TOKENS NEW' holds this, as in 'gpt2 32 17'")
    parser.add_argument("--weights", choices=WEIGHT_BYTES, default="float32", help="how all engines store weights")
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that no process stays behind, stopped
        signal.signal(number, lambda *_: sys.exit(1))
    load, versions = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as folder:
        rows = run(args, folder, versions)
    found = figures(rows)
    for name, figure in found.items():
        print(f"{name}: geometric mean {figure['geometric_mean']}, least {figure['least']} of {figure['rows']} rows")
    if args.json:
        command = f"./dev bench peers --python PYTHON --rounds {args.rounds}"
        command += f" --only {shlex.quote(args.only)}" if args.only else ""
        command += f" --weights {args.weights}" if args.weights != "float32" else ""
        result = {"date": datetime.date.today().isoformat(), "machine": machine(), "load": load, "versions": versions,
                  "command": command, "figures": found, "rows": rows}
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(row["errors"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
