#!/usr/bin/env python3
"""Prints the lines of C++ and .proto in each folder, without comments and blank lines, beside those of lines.json.
`--write` writes them to that file."""

import collections
import json
import pathlib
import sys

import words

FILE = pathlib.Path(__file__).with_name("lines.json")
_SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".inl", ".proto")
_PRODUCT = ("base", "client", "kernels", "model", "proto", "selfcheck", "server")
_BY_SECOND_LEVEL = ("client", "kernels", "model", "server", "tests")


def lines_of(text: str) -> int:
    """The lines of a source that are neither blank nor only a comment."""
    return sum(1 for line in words.without_comments(text).splitlines() if line.strip())


def count() -> dict:
    """{"product" or "tests": {folder: lines}}. Folders that are not of the product count as tests."""
    found = {"product": collections.Counter(), "tests": collections.Counter()}
    for path in words.files():
        if path.endswith(_SUFFIXES):
            folders = path.split("/")[:-1]
            group = "product" if folders[0] in _PRODUCT else "tests"
            levels = 2 if folders[0] in _BY_SECOND_LEVEL else 1
            found[group]["/".join(folders[:levels])] += lines_of(words.read(path))
    return {group: dict(sorted(folders.items())) for group, folders in found.items()}


def main() -> None:
    found = count()
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    elif sys.argv[1:]:
        sys.exit("usage: ./dev lines [--write]")
    allowed = json.loads(FILE.read_text())
    for group, folders in found.items():
        for folder, lines in folders.items():
            most = allowed[group].get(folder, 0)
            print(f"{folder:24}{lines:7}" + (f" (lines.json: {most})" if lines != most else ""))
        print(f"{group + ', in all':24}{sum(folders.values()):7}")


if __name__ == "__main__":
    main()
