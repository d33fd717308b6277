#!/usr/bin/env python3
"""Writes tests/testdata_tokenizers: small tokenizers of every kind, trained here, and what PyPI's `tokenizers` makes of
texts. Needs a virtual environment with `tokenizers` and `sentencepiece`. The files change with the texts in docs/ that
the tokenizers are trained on; tests read only what is committed. Arguments: the kinds to write, or none for all."""
import json
import sys

from tokenizer_answers import answer
from tokenizer_kinds import MULTILINGUAL, ROOT, kinds

TEXTS = [
    "", " ", "Hello, World! It's 1234567 edges.", "  two  spaces   and\ttabs\r\n\nnew lines \n", "WE'LL don't I'M 'ſ you\u2019re",
    "e\u0301\u0323 a\u0323\u0301\u0300 \u00e1\u0323 \u0344 Å İstanbul ΣΊΣΥΦΟΣ straße ǅ ﬁ ﷺ", "\u1100\u1161\u11a8 각 한국어 東京都 𠀀𪜶 क्षि ไทย שָׁלוֹם",
    "😀👍🏽👩\u200d👩\u200d👧\u200d👦🇩🇪🇫🇷1️⃣", "\x00a\x07b\x1b[0m\x7f\x85\u2028\ufeff\u200b\u200d\ufffd\u00ad\u00a0\u3000.", "½ ① Ⅷ １２ ١٢٣ ²",
    "foo_bar(x, y); // a->b && c!=d https://a.b/c?d=e", "<s>a</s> <mask>  b[MASK] c [CLS]<|endoftext|> <|eot_id|><unk>[UNK]",
    "Density density Densitys \u00dcDensity BUDGET  x  <x> y<x>", "▁▁a Ġb ##ing <0x41>", "…—‘quoted’ “x”", "\u07fd\u08e2\u1734\u1885\u1cf2\u111c9\U00011938㋿",
    "1 22 333 4444 55555", "x" * 99 + " " + "y" * 101, "do not, is n't. 's", *MULTILINGUAL[3:9]]


def requests():
    for text in TEXTS:
        yield {"text": text}
    for text, second in (("edges of a graph", "attention"), ("", "b"), ("a b c", ""), ("É1", "東京 x")):
        yield {"text": text, "second": second}
        yield {"text": text, "second": second, "special": False}
    yield {"text": "ab" * 5000, "max": 9}
    for most in (4, 7, 12):
        for left in (False, True):
            yield {"text": "a density of edges in every layer", "max": most, "left": left}
            yield {"text": "a density of edges", "second": "two words of it, and more than two", "max": most + 1, "left": left}


def shorter(values):
    """Without what is all 0, and without a second text that is the same."""
    return {field: value for field, value in values.items()
            if not (field in ("type_ids", "sequences") and not any(value)) and
            not (field == "plain" and value == values["decoded"])}


def main():
    folder = ROOT / "tests" / "testdata_tokenizers"
    folder.mkdir(exist_ok=True)
    asked = list(requests())

    def write(name, value):
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    write("requests.json", asked)
    for name, tokenizer in kinds(small=True, names=sys.argv[1:]).items():
        answers = [shorter(answer(tokenizer, request)) for request in asked]
        tokenizer.no_truncation()
        write(f"{name}.json", {"tokenizer": json.loads(tokenizer.to_str()), "answers": answers})


if __name__ == "__main__":
    main()
