#!/usr/bin/env python3
"""Writes the golden values of docs/random-numbers.md to tests/testdata, from this folder's own Philox.

    /usr/bin/python3 tests/reference/make_random_numbers.py [folder]

random-numbers-v1.txt has the uniform numbers of pairs; orders-v1.txt the normal numbers and the 64-bit sort keys of
what is drawn once per layer. A sort key belongs to stream 2 and window 0 and is 0 in other rows. events-v2.txt has heads
that are drawn by events: their tables, every accepted event, and what the rule says of larger heads.
token-choices-v1.txt has choices of generated tokens.
"""

import os
import sys

import numpy as np

import events
import token_choice
from permutation import GRID_ROWS, ORDER, Draw
from philox import philox4x32

PAIRS = "# seed sample layer head side query_position key_position uniform (times 2^40)\n"
EVENT_CASES = ("# case law exploration tokens rank shift hot step seed sample layer head side; its\n"
               "#   token index mean_gap (bits of a float) end_of_places is_heavy_key; event query key age (times 2^31)\n"
               "# rule tokens rank shift hot longest drawn_by_events\n")
CHOICES = ("# tokens samples step shift temperature top_k top_p min_p presence frequency repetition excluded uniform\n"
           "#   seen (token:times,... or -) token log_probability predictive_entropy mutual_information\n"
           "# logit of a token in a sample: ((token * step + sample * shift) mod 97) / 16\n")
ORDERS = "# seed sample layer side stream window element normal sort_key\n"


def _block(seed: int, sample: int, word2: int, query: int, block: int) -> np.ndarray:
    """Four random words, uint32 [4]."""
    return philox4x32([block, query, word2, sample], [seed & 0xFFFFFFFF, seed >> 32])


def pair_uniform(seed: int, sample: int, layer: int, head: int, side: int, query: int, key: int) -> int:
    """u * 2^40 of a pair, written from docs/random-numbers.md."""
    word2 = layer << 20 | head << 8 | side << 7
    column = key % 64
    e, t, b = column // 8, column % 8 // 2, column % 2
    high_bytes = _block(seed, sample, word2, query, key // 64 * 4 + t).astype("<u4").tobytes()
    low = int(_block(seed, sample, word2 | 1, query, key // 4)[key % 4])
    return high_bytes[2 * e + b] << 32 | low


def pair_lines() -> list:
    rng = np.random.default_rng(20240901)
    lines = [PAIRS]
    keys = list(range(64)) + [int(k) for k in rng.integers(0, 1 << 20, 200)]
    for key in keys:
        seed = int(rng.integers(0, 1 << 64, dtype=np.uint64)) if key % 3 else key
        fields = (seed, int(rng.integers(0, 300)), int(rng.integers(0, 4096)), int(rng.integers(0, 4096)),
                  int(rng.integers(0, 2)), int(rng.integers(0, 1 << 20)), key)
        lines.append(" ".join(str(f) for f in fields) + f" {pair_uniform(*fields)}\n")
    return lines


def order_lines() -> list:
    rng = np.random.default_rng(20261120)
    lines = [ORDERS]
    for row in range(200):
        seed = int(rng.integers(0, 1 << 64, dtype=np.uint64)) if row % 4 else row
        sample, layer, side = int(rng.integers(0, 300)), int(rng.integers(0, 4096)), int(rng.integers(0, 2))
        stream = GRID_ROWS if row % 5 == 4 else ORDER
        window = int(rng.integers(0, 1 << 16)) if row % 3 else 0
        element = int(rng.integers(0, 1 << 12))
        draw = Draw(seed, sample, side)
        normal = draw.normals(layer, window, element + 1, stream)[element]
        uniform = draw.sort_keys(layer, element + 1)[element] if stream == ORDER and window == 0 else 0
        lines.append(f"{seed} {sample} {layer} {side} {stream} {window} {element} {normal:.17g} {uniform}\n")
    return lines


def event_lines() -> list:
    lines = [EVENT_CASES]
    # law, exploration, tokens, rank, shift and hot of the memberships, step between positions
    for law, exploration, tokens, rank, shift, hot, step, seed in (
            (events.BERNOULLI, 0.0, 48, 16, 6, True, 1, 7), (events.BERNOULLI, 0.0078125, 60, 32, 7, False, 3, 1 << 63),
            (events.POISSON_SET, 0.0, 40, 16, 6, True, 1, 99), (events.POISSON_MULTI, 0.0, 40, 48, 7, True, 2, 12345)):
        head = events.Head(events.Memberships(tokens, rank, shift, hot), law, exploration)
        draw = events.Draw(seed, 3, 5, 2, 1, lambda token, step=step: step * token)
        lines.append(f"case {law} {exploration} {tokens} {rank} {shift} {int(hot)} {step} {seed} 3 5 2 1\n")
        for token in range(tokens):
            gap = np.float32(head.mean_gap[token]).view(np.uint32)
            lines.append(f"token {token} {gap} {head.places[token + 1]} {int(token in head.heavy_keys)}\n")
            lines += [f"event {token} {key} {age}\n" for key, age in sorted(draw.events(head, token))]
    for tokens, rank, shift, hot, longest in (
            (768, 16, 8, False, 1), (768, 16, 7, False, 1), (1024, 16, 8, False, 1), (1024, 16, 7, False, 1),
            (1024, 16, 9, True, 1), (4096, 16, 8, False, 1), (4096, 32, 7, False, 1), (4096, 16, 8, False, 195),
            (4096, 16, 8, False, 210)):
        head = events.Head(events.Memberships(tokens, rank, shift, hot, longest), events.BERNOULLI, 0.0)
        lines.append(f"rule {tokens} {rank} {shift} {int(hot)} {longest} {int(head.is_drawn_by_events())}\n")
    return lines


def choice_lines() -> list:
    rng = np.random.default_rng(20261127)
    lines = [CHOICES]
    while len(lines) < 301:
        row = len(lines)
        tokens, samples = int(rng.choice([5, 60, 300])), int(rng.integers(1, 3))
        step, shift = int(rng.integers(1, 97)), int(rng.integers(0, 97))
        rules = token_choice.Rules(
            temperature=float(rng.choice([0.0, 0.5, 1.0, 1.7])), top_k=int(rng.choice([0, 1, 7, 40])),
            top_p=float(rng.choice([0.0, 0.3, 0.87])), min_p=float(rng.choice([0.0, 0.0, 0.07, 0.61])))
        if row % 2:
            rules.presence, rules.frequency = float(rng.choice([0.0, 0.75, -2.0])), float(rng.choice([0.0, 0.5, -2.0]))
            rules.repetition = float(rng.choice([1.0, 2.5, 0.4]))
            rules.seen = {int(token): int(rng.integers(0, 4)) for token in rng.integers(0, tokens, 6)}
        if row % 5 == 0:  # scores above 0
            tokens, rules = 5, token_choice.Rules(temperature=1.0, presence=-2.0, frequency=-1.0,
                                                  repetition=float(rng.choice([2.5, 0.4])))
            rules.seen = {int(token): int(rng.integers(0, 3)) for token in rng.integers(0, tokens, 2)}
        excluded, uniform = int(rng.integers(-1, tokens)), round(float(rng.random()), 6)
        samples_of = [token_choice.softmax([(token * step + sample * shift) % 97 / 16 for token in range(tokens)])
                      for sample in range(samples)]
        mean = np.sum(samples_of, axis=0) / samples if samples > 1 else samples_of[0]
        chosen = token_choice.choose(mean, rules, excluded, uniform)
        if chosen is None:  # rounding might decide
            continue
        entropy = token_choice.entropy(mean)
        information = max(0.0, entropy - np.mean([token_choice.entropy(p) for p in samples_of])) if samples > 1 else 0.0
        seen = ",".join(f"{token}:{times}" for token, times in sorted(rules.seen.items())) or "-"
        lines.append(f"{tokens} {samples} {step} {shift} {rules.temperature} {rules.top_k} {rules.top_p} {rules.min_p} "
                     f"{rules.presence} {rules.frequency} {rules.repetition} {excluded} {uniform} {seen} {chosen} "
                     f"{np.log(mean[chosen]):.12g} {entropy:.12g} {information:.9f}\n")
    return lines


def main(folder: str) -> None:
    for name, lines in (("random-numbers-v1.txt", pair_lines()), ("orders-v1.txt", order_lines()),
                        ("events-v2.txt", event_lines()), ("token-choices-v1.txt", choice_lines())):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.writelines(lines)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "testdata"))
