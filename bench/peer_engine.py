"""One engine that bench/peers.py compares with: a child in the peers' Python that answers lines of JSON.

    PYTHON bench/peer_engine.py NAME --threads N [--weights float32|bfloat16|int8]

The first line says which version runs, or why none can. Then, line by line: {"do": "prepare", "folder", "texts",
"at_once", "new"} loads the model of a folder of Hugging Face and binds token ids, those of a text each, which are
computed one after another or all at once; {"do": "answer"} gives logits, or the new tokens of each text; and {"do":
"time", "seconds"} times one turn.
"""

import argparse
import importlib
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

ENGINES = {  # name: module, class
    "onnxruntime": ("peer_encoders", "OnnxRuntime"), "openvino": ("peer_encoders", "OpenVino"),
    "torch-encoder": ("peer_encoders", "TorchEncoder"), "ctranslate2": ("peer_decoders", "CTranslate2"),
    "llama.cpp": ("peer_decoders", "LlamaCpp"), "torch-decoder": ("peer_decoders", "TorchDecoder"),
}


def now():
    return np.array([time.perf_counter(), time.process_time()])


def one_turn(call, seconds):
    """call() -> (wall, CPU) seconds of what is timed. Calls for `seconds`, at least one. One before warms up; it counts
    where it took that long itself."""
    start = time.perf_counter()
    times = [call()]
    if time.perf_counter() - start < seconds:
        end, times = time.perf_counter() + seconds, []
        while not times or time.perf_counter() < end:
            times.append(call())
    wall, cpu = zip(*times)
    return {"wall": statistics.median(wall), "cpu": statistics.fmean(cpu)}


def span(start, stamps, texts):
    """(wall, CPU) seconds of a new token of a generation that began at `start`; `stamps`: the moments of all tokens, in
    order. For one text, the tokens after its first, where there are any; for several, all of them, prompts included."""
    if texts == 1 and len(stamps) > 1:
        start, stamps = stamps[0], stamps[1:]
    return (stamps[-1] - start) / len(stamps)


class Engine:
    """A model and texts. Subclasses have load(), which makes self.texts ready to be computed.

    FORMATS: of weights that the engine has, as the server's --weights names them; activations may have them too."""

    FORMATS = ("float32",)

    def __init__(self, threads, weights):
        if weights not in self.FORMATS:
            raise RuntimeError(f"compared with {' and '.join(self.FORMATS)} weights only")
        self.threads, self.format, self.folder = threads, weights, None

    def prepare(self, folder, texts, at_once, new):
        if self.folder != pathlib.Path(folder):
            self.folder, self.kept = pathlib.Path(folder), {}
        self.texts, self.at_once, self.new = texts, at_once, new
        self.config = json.loads((self.folder / "config.json").read_text())
        self.load()

    def keep(self, key, make):
        """The result of make() for this key and folder."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def pretrained(self, automatic, attention="sdpa", dtype="float32"):
        """The folder as a module of transformers; `automatic`: the name of one of its classes for automatic loading."""
        import torch
        import transformers
        found = getattr(transformers, automatic).from_pretrained(
            self.folder, attn_implementation=attention, dtype=getattr(torch, dtype))
        return found.eval()


def answer_line(engine, line):
    asked = json.loads(line)
    try:
        if asked["do"] == "prepare":
            engine.prepare(asked["folder"], asked["texts"], asked["at_once"], asked["new"])
            return {}
        return {"answer": engine.answer()} if asked["do"] == "answer" else one_turn(engine.timed, asked["seconds"])
    except Exception as error:  # of any engine; the row says it
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ENGINES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", default="float32")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints is no answer
    module, kind = ENGINES[args.name]
    try:
        engine = getattr(importlib.import_module(module), kind)(args.threads, args.weights)
    except (ImportError, OSError, RuntimeError) as error:
        lines.write(json.dumps({"error": str(error)}) + "\n")
        return
    lines.write(json.dumps({"version": engine.version}) + "\n")
    for line in sys.stdin:
        lines.write(json.dumps(answer_line(engine, line)) + "\n")


if __name__ == "__main__":
    main()
