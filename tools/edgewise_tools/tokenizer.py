"""Command-line options that describe what a checkpoint does not hold: its tokenizer and the names of its labels."""

import argparse

from .errors import ConvertError, mismatch, quoted
from .files import read_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocab", metavar="F", help="word tokenizer: one token a line, the first line is id 0")
    parser.add_argument("--unknown_token", metavar="T", help="the token of --vocab that stands for unknown words")
    parser.add_argument(
        "--substitute",
        metavar="WORD=TOKEN",
        action="append",
        default=[],
        help="word tokenizer: read WORD as TOKEN; with nothing after the = WORD is dropped (repeatable)",
    )
    parser.add_argument("--tokenizer", choices=("none", "byte", "word"), help="byte: id = byte + 1; default none")
    parser.add_argument("--labels", metavar="F", help="names of the labels, one a line, the first line is label 0")


def tokenizer_config(args: argparse.Namespace, vocab_size: int) -> dict:
    """The `tokenizer` object of config.json."""
    kind = args.tokenizer or ("word" if args.vocab else "none")
    if (kind == "word") != bool(args.vocab):
        raise ConvertError(f"--tokenizer {kind} " + ("needs --vocab" if kind == "word" else "excludes --vocab"))
    if kind != "word" and (args.unknown_token or args.substitute):
        raise ConvertError("--unknown_token and --substitute need --vocab")
    if kind == "byte":
        if vocab_size < 257:
            raise mismatch("--tokenizer byte: vocab_size", vocab_size, "at least 257 (bytes 0 to 255, and the pad)")
        return {"kind": "byte", "offset": 1}
    if kind == "none":
        return {"kind": "none"}
    return _word(args, vocab_size)


def _word(args: argparse.Namespace, vocab_size: int) -> dict:
    words = read_lines(args.vocab)
    if not 1 <= len(words) <= vocab_size:
        raise mismatch(f"{args.vocab}: tokens", len(words), f"1 to vocab_size {vocab_size}")
    ids = {}
    for index, word in enumerate(words):
        if word.split() != [word]:
            raise mismatch(f"{args.vocab}: line {index + 1}", quoted(word), "one token without white space")
        if word in ids:
            raise ConvertError(f"{args.vocab}: line {index + 1}: token {quoted(word)} is line {ids[word] + 1} already")
        ids[word] = index
    result = {"kind": "word", "vocabulary": words}
    if args.unknown_token is not None:
        if args.unknown_token not in ids:
            raise mismatch("--unknown_token", quoted(args.unknown_token), f"a token of {args.vocab}")
        result["unknown_token_id"] = ids[args.unknown_token]
    for text in args.substitute:
        word, sign, token = text.rpartition("=")
        if not sign or word.split() != [word] or (token and token not in ids):
            raise mismatch("--substitute", quoted(text), f"WORD=TOKEN with a token of {args.vocab}, or WORD=")
        result.setdefault("substitutions", {})[word] = token
    return result


def labels_config(path: str, num_labels: int) -> dict:
    """The `id2label` object of config.json."""
    labels = read_lines(path)
    if len(labels) != num_labels:
        raise mismatch(f"{path}: labels", len(labels), f"one for each of the {num_labels} classes")
    if "" in labels or len(set(labels)) != len(labels):
        raise ConvertError(f"{path}: labels must be distinct and not empty")
    return {str(index): label for index, label in enumerate(labels)}
