#!/usr/bin/env python3
"""Whole models on the CPU: of SBM sparse, capped and dense, and dense ones beside other engines.

    ./dev bench models [--python PYTHON] [--weights float32|bfloat16|int8] [--only sbm,TEXT] [--json FILE] [--rounds 7]
                       [--cpu] [--plot FILE] [--against BIN]

The part `sbm` (bench/sbm_models.py) takes a model of 4 layers, 8 heads, 512 wide with 64 clusters and random weights, at
densities from 2.5 to 21 %, and the bundled model `long`. One request at a time: with the model's attention, with DENSE,
and with caps of a half, a quarter and a tenth of the model's own edges, in turns. Ratios are of `compute_us`, the forward
pass. --against names the folder of another build's programs: its server takes turns with ours.

The others need --python, one with torch, transformers, onnx, onnxscript, onnxruntime, openvino, ctranslate2,
llama-cpp-python and gguf; an engine that it lacks is skipped, and the reason is printed. All engines have the same folders
of Hugging Face, of random weights, and the same token ids; our server reads them as they are.

- `bert-base` and `minilm`, classifiers (BertForSequenceClassification) in the shapes of BERT-base and of MiniLM with 6
  layers: texts of 16, 64, 128 and 512 tokens alone; and 16 texts, four of each length, one after another and as 16 calls
  at once. Our server answers these as they come, without padding; the others get them as one batch, padded to the
  longest. Beside it stands what they take one after another, over ours at once. Logits must agree to 1e-4 of the largest.
- `gpt2`, the shape of GPT-2 small, greedy: of one text prefill of 32 and 512 tokens, up to the first new token, and
  decode, the time of each of 16 tokens after it. For 16 texts at once, for us 16 calls and for the others a batch: prefill
  of 32 and 128 tokens each, and 32 new tokens after 32, the time from the calls to the last token over all new tokens.
  The new tokens must be equal; of llama.cpp those of three quarters of the texts.

A row where one differs says so, compares with the others, and makes the exit status 1. With --weights=bfloat16 or int8
every engine stores weights so, and rounds in its own way: logits may differ by a tenth of the largest, with int8 by three
tenths, and tokens may differ. PyTorch and OpenVINO then compute in bfloat16 throughout.

Engines have two threads, and take turns. With --cpu they have one, and the CPU seconds of the process count. Ours is the
server: `compute_us` of an answer, and for decode the time between its messages; of calls at once the time until all are
answered, as the client sees it. A ratio is the median over rounds of a peer's over ours: above 1, ours is faster.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import sys
import tempfile

import peers
import sbm_models
from products import machine
from random_models import ROOT


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/bin"), help="folder of edgewise-server and edgewise")
    parser.add_argument("--python", help="the Python that has the other engines; without it there is `sbm` alone")
    parser.add_argument("--weights", choices=peers.WEIGHT_BYTES, default="float32", help="how engines store weights")
    parser.add_argument("--only", default="", help="`sbm`, and rows whose name holds this, or one of these: A,B")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="beside others: CPU seconds on one thread")
    parser.add_argument("--json", help="write the rows to this file, after each row")
    parser.add_argument("--plot", help="draw dense over sparse by density (needs Matplotlib)")
    parser.add_argument("--against", help="folder of another build's programs, for `sbm`")
    return parser


class Result:
    """The rows so far. The file has it after every row."""

    def __init__(self, args, parser):
        command = ["./dev", "bench", "models"]
        for key, value in vars(args).items():
            if key not in ("bin", "json", "plot") and value != parser.get_default(key):
                name = {"python": "PYTHON", "against": "BIN"}.get(key, value)
                command += [f"--{key}"] if value is True else [f"--{key}", str(name)]
        self.path = args.json
        self.found = {"date": datetime.date.today().isoformat(), "machine": machine(), "load": os.getloadavg()[0],
                      "command": shlex.join(command), "versions": {}, "figures": {}, "rows": [], "sbm": []}

    def add(self, part, row):
        self.found[part].append(row)
        self.found["figures"] = peers.figures(self.found["rows"])
        if self.path:
            pathlib.Path(self.path).write_text(json.dumps(self.found, indent=1) + "\n")


def main():
    parser = flags()
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that no process stays behind, stopped
        signal.signal(number, lambda *_: sys.exit(1))
    wanted = args.only.split(",")
    chosen = [case for case in peers.cases() if any(part in case["name"] for part in wanted)]
    has_sbm = any(part in "sbm" for part in wanted)
    if not has_sbm and not chosen:
        parser.error(f"--only: found {args.only}; rows are sbm, {', '.join(case['name'] for case in peers.cases())}")
    result = Result(args, parser)
    with tempfile.TemporaryDirectory() as folder:
        if has_sbm:
            for row in sbm_models.run(args, pathlib.Path(folder)):
                result.add("sbm", row)
            if args.plot:
                sbm_models.plot(result.found["sbm"], args.plot)
        if not args.python:
            print("beside other engines: skipped: --python names no Python that has them", flush=True)
            return 0
        for row in peers.run(args, folder, chosen, result.found["versions"]):
            result.add("rows", row)
    for name, figure in result.found["figures"].items():
        print(f"{name}: geometric mean {figure['geometric_mean']}, least {figure['least']} of {figure['rows']} rows")
    return 1 if any(row["errors"] for row in result.found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
