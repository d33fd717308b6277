#!/usr/bin/env python3
"""Compares the tokenizers of Hugging Face folders with PyPI's `tokenizers`, line by line: ids, types, offsets, words,
decoded text, and text decoded as a stream. Prints how many lines differ, and fails where one does.

    PYTHON tests/reference/compare_tokenizers.py [--lines 10000] [--seed 1] [--kinds bert,gpt2] [--folder FOLDER]

PYTHON is that of a virtual environment with `tokenizers` and `sentencepiece`; build/tests/tokenize_lines must be built.
Without --folder tokenizers of every kind are trained."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

from tokenizer_answers import answer, requests
from tokenizer_kinds import ROOT, kinds, lines


def compare(name, folder, tokenizer, asked, program, shown):
    """How many lines differ."""
    text = "".join(json.dumps(request) + "\n" for request in asked)
    done = subprocess.run([program, folder], input=text, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr}")
    differing = {}
    streamed = 0
    for request, line in zip(asked, done.stdout.splitlines(), strict=True):
        ours, theirs = json.loads(line), answer(tokenizer, request)
        stream = ours.pop("streamed", None)
        # From a run of bytes that is no UTF-8 `tokenizers` makes U+FFFD all of it, when it is over: no stream can wait so long.
        streamed += stream != theirs["decoded"] and "\ufffd" not in theirs["decoded"]
        wrong = [field for field in theirs if ours.get(field) != theirs[field]]
        for field in wrong:
            differing[field] = differing.get(field, 0) + 1
        if wrong and shown > 0:
            shown -= 1
            print(f"  {name}: {json.dumps(request)[:300]}")
            for field in wrong:
                print(f"    {field}: ours {str(ours.get(field, ours.get('error')))[:300]}")
                print(f"    {field}: theirs {str(theirs[field])[:300]}")
    fields = ", ".join(f"{field} {count}" for field, count in differing.items()) or "none"
    print(f"{name}: of {len(asked)} lines differ in: {fields}; streamed text {streamed}", flush=True)
    return sum(differing.values()) + streamed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help="names, with commas; every kind where it is not given")
    parser.add_argument("--folder", type=pathlib.Path, help="a folder with a tokenizer.json, instead of trained ones")
    parser.add_argument("--program", default=ROOT / "build" / "tests" / "tokenize_lines")
    parser.add_argument("--show", type=int, default=3, help="differing lines to show of each kind")
    arguments = parser.parse_args()
    asked = list(requests(lines(arguments.lines, arguments.seed)))
    wrong = 0
    if arguments.folder:
        tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
        tokenizer.no_padding()
        wrong += compare(arguments.folder.name, arguments.folder, tokenizer, asked, arguments.program, arguments.show)
    else:
        for name, tokenizer in kinds(small=False, names=arguments.kinds.split(",") if arguments.kinds else ()).items():
            with tempfile.TemporaryDirectory() as folder:
                tokenizer.save(f"{folder}/tokenizer.json")
                wrong += compare(name, folder, tokenizer, asked, arguments.program, arguments.show)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
