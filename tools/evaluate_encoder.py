#!/usr/bin/env python3
"""What sparse attention costs a sentence encoder: the tables of docs/evaluate.md, "A sentence encoder".

    tools/evaluate_encoder.py FOLDER SENTENCES [--pairs 200] [--words 0] [--repeats 1]

FOLDER is one of Hugging Face, with a sentence encoder. SENTENCES is a text file, one sentence a line (what follows a tab
is dropped), such as dev.tsv of SST-2. With --words the sentences are joined, in their order, to texts of at least that many
words; what is too long for the model is cut. Every other text is paired with the one most like it, the rest with any
other, so that the pairs differ in how alike they are.

The right answer for a pair is the cosine that the same server computes with dense attention: the table says how well a
setting keeps the order of these cosines, and says nothing of how well people would agree with them. It serves FOLDER
with the programs of build/bin, asks through `edgewise predict` and `edgewise evaluate`, and prints Markdown.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

import numpy as np

from evaluation.server import Server

BIN = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin"
# Flags of one `edgewise evaluate` each: its rows after the dense one.
SWEEPS = (
    ("--windows=2,4,8", "--sigma=0.05", "--keep=32,64"),
    ("--window_tokens=16,32,64,128", "--sigma=8", "--block_size=16,32,64", "--block_pattern=local"),
    ("--window_tokens=32,64", "--sigma=8", "--last_layers=3"),
    ("--window_tokens=128", "--sigma=8", "--caps=10%,25%"),
    ("--window_tokens=64", "--sigma=8", "--samples=4,8"),
)


def texts(sentences: list, words: int) -> list:
    """The sentences, or as many of them in a row as make `words` words."""
    if words == 0:
        return sentences
    joined, open_text = [], []
    for sentence in sentences:
        open_text += sentence.split()
        if len(open_text) >= words:
            joined.append(" ".join(open_text))
            open_text = []
    return joined


def ask(server: Server, *arguments: str) -> str:
    return subprocess.run([BIN / "edgewise", arguments[0], "--server", server.address, "--model=encoder",
                           "--truncate=tail", *arguments[1:]], capture_output=True, text=True, check=True).stdout


def write(path: pathlib.Path, lines: list) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def dense_cosines(server: Server, folder: pathlib.Path, found: list) -> np.ndarray:
    """For every text with every other."""
    write(folder / "texts.jsonl", [{"text": text} for text in found])
    answers = ask(server, "predict", "--input", str(folder / "texts.jsonl"), "--dense", "--json").splitlines()
    rows = np.array([json.loads(line)["predictions"][0]["embedding"] for line in answers])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def make_pairs(cosines: np.ndarray, count: int) -> list:
    """Pairs of indexes: text i with the most like it (i even) or the next one (i odd)."""
    others = cosines - 2 * np.eye(len(cosines))
    return [(i, int(np.argmax(others[i])) if i % 2 == 0 else (i + 1) % len(cosines)) for i in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sentences", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--words", type=int, default=0, help="0: single sentences")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    lines = [line.split("\t")[0].strip() for line in arguments.sentences.read_text().splitlines()]
    found = texts([line for line in lines if line], arguments.words)
    random.Random(1).shuffle(found)
    found = found[:2 * arguments.pairs]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(arguments.folder, folder / "models" / "encoder" / "1")  # a repository takes no links
        with Server(BIN, folder / "models", folder) as server:
            cosines = dense_cosines(server, folder, found)
            pairs = make_pairs(cosines, min(arguments.pairs, len(found)))
            write(folder / "pairs.jsonl", [{"text": found[a], "second_text": found[b], "value": float(cosines[a, b])}
                                           for a, b in pairs])
            results = [json.loads(ask(server, "evaluate", "--data", str(folder / "pairs.jsonl"), "--json",
                                      f"--repeats={arguments.repeats}", *sweep)) for sweep in SWEEPS]
    values = [cosines[a, b] for a, b in pairs]
    print(f"{len(pairs)} pairs, on {results[0]['device']}; cosines of dense attention from {min(values):.2f} to "
          f"{max(values):.2f}\n")
    print("| setting | samples | density | rank correlation | time / dense |")
    print("|---|--:|--:|--:|--:|")
    printed = set()  # every sweep has the dense row, and that of windows without a cap
    for row in (row for result in results for row in result["settings"]):
        if (row["setting"], row["samples"]) in printed:
            continue
        printed.add((row["setting"], row["samples"]))
        print(f"| {row['setting']} | {row['samples']} | {100 * row['density']:.1f} % | {row['quality']:.4f} | "
              f"{1 / row['speed']:.2f} |")


if __name__ == "__main__":
    main()
