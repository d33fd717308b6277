#!/usr/bin/env python3
"""Writes which special tokens transformers finds in the files beside tokenizer.json, and the ids that texts then have.

    pip install transformers
    tests/reference/make_special_tokens.py tests/testdata_special_tokens.json

Each case has `files` beside the tokenizer.json of tests/testdata_tokenizers/gpt2.json (with `padding`, where it is
given), the `named` tokens, and the `ids` of `text`."""

import argparse
import json
import pathlib
import tempfile

import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
END = "<|endoftext|>"
TEXT = f"a {END} the<s>the the</s> <image>[NEW] <x><y>[PAD] <z>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def typed(token, **options):
    return {"__type": "AddedToken", **plain(token, **options)}


def plain(token, **options):
    return {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **options}


CASES = [
    {},
    {CONFIG: {"bos_token": END, "eos_token": "the"}},
    {CONFIG: {"bos_token": typed("<s>"), "eos_token": typed("</s>", lstrip=True)}},
    {MAP: {"bos_token": "<s>", "eos_token": plain("</s>", rstrip=True)}},
    {CONFIG: {"bos_token": END, "eos_token": "</s>", "sep_token": None}, MAP: {"bos_token": "<s>", "eos_token": None, "cls_token": None}},
    {CONFIG: {"bos_token": None, "pad_token": "[PAD]"}, MAP: {"bos_token": "<s>"}},
    {CONFIG: {"bos_token": END, "added_tokens_decoder": {}}, MAP: {"bos_token": "<s>", "eos_token": "</s>"}},
    {CONFIG: {"bos_token": "<s>", "added_tokens_decoder": {"421": plain("<s>", special=True), "0": plain(END, special=True),
                                                           "420": plain("<x>", special=False, normalized=True)}}},
    {CONFIG: {"extra_special_tokens": {"image_token": "<image>"}, "add_bos_token": True}},
    {CONFIG: {"image_token": "<image>"}, MAP: {"image_token": "<y>", "video_token": plain(END)}},
    {CONFIG: {"image_token": "the"}, MAP: {"extra_special_tokens": {"image_token": "<image>"}}},
    {CONFIG: {"extra_special_tokens": ["<x>", typed("<y>", lstrip=True)], "additional_special_tokens": ["<z>"]}},
    {CONFIG: {"additional_special_tokens": ["<x>"]}, MAP: {"additional_special_tokens": ["<z>"], "bos_token": "<s>"}},
    {CONFIG: {"extra_special_tokens": ["<x>"]}, MAP: {"extra_special_tokens": ["<y>", plain("<z>"), "<x>"]}},
    {MAP: {"additional_special_tokens": ["<z>", "<x>"], "pad_token": "[PAD]", "mask_token": "[NEW]"}},
    {CONFIG: {"eos_token": "</s>"}, ADDED: {"</s>": 900, "<x>": 700, "the": 5}},
    {CONFIG: {"bos_token": "ge", "eos_token": "[NEW]", "mask_token": "<x>"}, "padding": "<z>"},
    {CONFIG: {"bos_token": "", "eos_token": END}, ADDED: {END: 0}},
    {"padding": "[PAD]"},
    {"padding": "[PAD]", CONFIG: {"pad_token": "<x>"}},
    {"padding": "[PAD]", CONFIG: {"pad_token": None}},
]


def answer(case, base):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = dict(base)
        if "padding" in case:
            tokenizer["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3,
                                    "pad_type_id": 0, "pad_token": case["padding"]}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        # This class obeys tokenizer.json; others build a tokenizer of their own.
        files = {**case, CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **case.get(CONFIG, {})}}
        for file, value in files.items():
            if file != "padding":
                (folder / file).write_text(json.dumps(value))
        read = transformers.AutoTokenizer.from_pretrained(folder)
        return {**case, "named": read.special_tokens_map, "ids": read(TEXT, add_special_tokens=False)["input_ids"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    base = json.loads((ROOT / "tests/testdata_tokenizers/gpt2.json").read_text())["tokenizer"]
    cases = ",\n".join(json.dumps(answer(case, base)) for case in CASES)
    arguments.file.write_text(f'{{"text": {json.dumps(TEXT)}, "cases": [\n{cases}\n]}}\n')


if __name__ == "__main__":
    main()
