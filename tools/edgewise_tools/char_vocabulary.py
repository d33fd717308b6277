"""The characters that a nanoGPT model was trained on: from a text, a JSON list, or nanoGPT's meta.pkl."""

import argparse

from .errors import ConvertError, mismatch, quoted
from .files import parse_json, read_bytes
from .torch_pickle import read_pickle

_BYTE_PAIRS = (50257, 50304)  # GPT-2's vocabulary, and as nanoGPT rounds it up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--meta", metavar="meta.pkl", help="character tokenizer: what nanoGPT's prepare.py wrote")
    which.add_argument(
        "--vocab", metavar="F", help="character tokenizer: a text with the characters in the order of their ids, or "
        "F.json with a list of them"
    )


def tokenizer_config(args: argparse.Namespace, vocab_size: int) -> dict:
    """The `tokenizer` object of config.json."""
    path = args.meta or args.vocab
    if not path:
        return {"kind": "none"}
    if vocab_size in _BYTE_PAIRS:
        raise ConvertError(
            f"{path}: the model has {vocab_size} tokens, the byte pairs of GPT-2, not characters: without --vocab and "
            "--meta it takes token ids"
        )
    characters = _from_meta(path) if args.meta else _from_list(path)
    if len(characters) != vocab_size:
        raise mismatch(f"{path}: characters", len(characters), f"vocab_size {vocab_size} of the checkpoint")
    seen = {}
    for index, character in enumerate(characters):
        place = f"{path}: entry {index}"
        held = isinstance(character, str) and character[:1] == "<" and character[-1:] == ">" and len(character) > 2
        if not isinstance(character, str) or (len(character) != 1 and not held):
            raise mismatch(place, quoted(character), "one character, or a name in angle brackets that holds a place")
        if "\ud800" <= character[0] <= "\udfff":
            raise mismatch(place, quoted(character), "a character of Unicode")
        if character in seen:
            raise ConvertError(f"{place}: {quoted(character)} is entry {seen[character]} already")
        seen[character] = index
    return {"kind": "char", "vocabulary": characters}


def _from_list(path: str) -> list:
    """A JSON list, or every character of a text; the line end that an editor adds at the end does not count."""
    data = read_bytes(path)
    if path.endswith(".json"):
        characters = parse_json(data, path)
        if not isinstance(characters, list):
            raise ConvertError(f"{path}: not a JSON list of characters")
        return characters
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: byte {error.start}: not UTF-8") from None
    return list(text[:-1] if text.endswith("\n") and "\n" in text[:-1] else text)


def _from_meta(path: str) -> list:
    """vocab_size, itos (id -> character) and stoi (character -> id), which must agree. Nothing in it is executed."""
    meta = read_pickle(read_bytes(path), path)
    if not isinstance(meta, dict):
        raise ConvertError(f"{path}: not a dict of vocab_size, itos and stoi")
    for name in ("itos", "stoi"):
        if not isinstance(meta.get(name), dict):
            raise mismatch(f"{path}: {name}", quoted(type(meta.get(name)).__name__), "a dict")
    itos, stoi = meta["itos"], meta["stoi"]
    size = meta.get("vocab_size")
    if type(size) is not int or size != len(itos):
        raise mismatch(f"{path}: vocab_size", quoted(size), f"{len(itos)}, the entries of itos")
    for index in range(size):
        if index not in itos:
            raise ConvertError(f"{path}: itos: id {index} is missing")
    characters = [itos[index] for index in range(size)]
    if len(stoi) != size or any(stoi.get(c) != index for index, c in enumerate(characters) if isinstance(c, str)):
        raise ConvertError(f"{path}: stoi is not the inverse of itos")
    return characters
