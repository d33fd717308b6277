#!/usr/bin/env python3
"""Makes tests/testdata: small models with random weights, and their logits by the float64 reference.

    /usr/bin/python3 tests/reference/make_testdata.py [folder]

Each case is a folder <case>/1/{config.json, model.safetensors} and <case>/golden.json, a list of entries. n is the
number of positions as sent, plus 1 where the model puts a CLS token in front.

    token_ids         the input, as sent; or
    features          on models with a feature_size: n rows of as many numbers
    second            pairs: the other sequence's token ids
    bias_values       pairwise_bias of kind values: n * n numbers, row-major, one per (query, key); or
    bias_buckets      of kind buckets: n * n integers
    seed, sample      models that choose their edges (ssa, block): the draw. seed is 64 bits, sample an index below 300;
                      nothing that block models do depends on them
    graph             the edges of every layer and head, those of a pair's second sequence behind the first's. With
                      `seed` those that the model chooses with this seed and sample: it must find exactly these, and
                      give the same bytes when they are given to it. Without `seed` they are given (sbm)
    logits            C numbers: of a regression the values, of a causal-lm the V logits of the token after the last
                      valid one. Token classification: one row per position as sent, null for a pad
    log_probabilities causal-lm: ln p(token | those before it) of every valid token but the first
    expected_edges    sbm: the expected number of distinct edges per layer and head, each layer's input being what the
                      graph makes of it

Trailing pads are no part of the length from which an adaptive block size comes. A language model's token is scored at
the valid token before it, whatever pads lie between.

The output depends on nothing but the files of this folder: a test makes it again and compares.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from edgewise_reference import Reference  # noqa: E402
from golden_cases import CASES, make_config  # noqa: E402
from golden_weights import make_tensors, write_model  # noqa: E402
from model_files import graph_head  # noqa: E402


def make_inputs(config: dict, rng: np.random.Generator) -> dict:
    """name -> token ids: full length, short, length 1, interior, trailing and both kinds of pads, leading pads (nine),
    a lone token. Where there are no pads: full length, short, two, one.
    """
    length, pad = config["max_position_embeddings"], config.get("pad_token_id", 0)
    words = [i for i in range(config["vocab_size"]) if i not in (pad, config.get("cls_token_id"))]

    def tokens(n: int) -> np.ndarray:
        return rng.choice(words, n)

    if pad < 0:
        return {name: tokens(n).tolist() for name, n in (("full", length), ("short", 17), ("two", 2), ("one", 1))}
    interior = tokens(23)
    interior[[3, 4, 11, 20]] = pad
    trailing = tokens(30)
    trailing[19:] = pad
    both = tokens(length)
    both[rng.random(length) < 0.3] = pad
    both[-5:] = pad
    leading = tokens(9)
    leading[:2] = pad
    lone = np.full(12, pad)
    lone[7] = words[5]
    inputs = {"full": tokens(length), "short": tokens(17), "one": tokens(1), "interior": interior}
    inputs.update(trailing=trailing, both=both, nine=leading, lone=lone)
    return {name: [int(i) for i in ids] for name, ids in inputs.items()}


def make_features(config: dict, rng: np.random.Generator) -> dict:
    """name -> rows of `feature_size` numbers that are exact in float32."""
    lengths = {"full": config["max_position_embeddings"], "short": 17, "nine": 9, "one": 1}
    return {
        name: rng.standard_normal((n, config["feature_size"])).round(3).astype(np.float32).astype(float).tolist()
        for name, n in lengths.items()
    }


def make_layer(valid: np.ndarray, heads: int, density: float, rng: np.random.Generator) -> dict:
    """A random graph of one layer: about `density` of the valid pairs, and about a fifth of the rows without edges."""
    result = []
    for _ in range(heads):
        edges = rng.random((len(valid), len(valid))) < density
        edges[rng.random(len(valid)) < 0.2] = False
        if density >= 1.0:
            edges[:] = True
        edges &= np.outer(valid, valid)
        result.append(graph_head(edges))
    return {"heads": result}


def make_graph(model: Reference, sequences: list, index: int, rng: np.random.Generator) -> dict:
    """A random graph for an sbm model; the density depends on the entry's index."""
    config, density = model.config, (0.15, 0.4, 1.0, 0.3, 0.25, 0.1, 0.5, 1.0)[index % 8]
    layers = []
    for ids in sequences:
        valid = model.as_seen(ids) != config.get("pad_token_id", 0)
        for _ in range(config["num_hidden_layers"]):
            layers.append(make_layer(valid, config["num_attention_heads"], density, rng))
    return {"layers": layers}


def make_bias(config: dict, n: int, rng: np.random.Generator) -> tuple:
    """(the entry's field, n * n numbers) of a model with a pairwise_bias."""
    if config["pairwise_bias"]["kind"] == "buckets":
        return "bias_buckets", rng.integers(0, config["pairwise_bias"]["num_buckets"], n * n).tolist()
    return "bias_values", (rng.integers(-3000, 3000, n * n) / 1024).tolist()


def make_golden(model: Reference, names: tuple, rng: np.random.Generator) -> list:
    """The inputs of a case with their logits, rounded to 12 significant digits."""
    config = model.config
    attention = config["attention"]
    kinds = {one["kind"] for one in (attention if isinstance(attention, list) else [attention])}
    field = "features" if "feature_size" in config else "token_ids"
    inputs = (make_features if field == "features" else make_inputs)(config, rng)
    inputs = [inputs[name] for name in names or inputs]
    entries = []
    for index, first in enumerate(inputs):
        entry, given = {field: first}, {}
        sequences = [first]
        if config["task"] == "pair-classification":
            entry["second"] = inputs[(index + 3) % len(inputs)]
            sequences.append(entry["second"])
        if "pairwise_bias" in config:
            name, given["bias"] = make_bias(config, len(first), rng)
            entry[name] = given["bias"]
        if "sbm" in kinds:
            entry["graph"] = make_graph(model, sequences, index, rng)
        elif kinds & {"ssa", "block"}:
            draw = (int(rng.integers(0, 1 << 64, dtype=np.uint64)), int(rng.integers(0, 300)))
            entry["seed"], entry["sample"] = draw
            entry["graph"] = model.attended(*sequences, draw=draw, **given)
        graph = entry.get("graph")
        entry["logits"] = _rounded(model.logits(first, entry.get("second"), graph, **given))
        if config["task"] == "causal-lm":
            entry["log_probabilities"] = _rounded(model.log_probabilities(first, graph, **given))
        if "sbm" in kinds:
            likely = model.probabilities_of_edges(first, entry.get("second"), graph)
            entry["expected_edges"] = _rounded(np.array([layer.sum(axis=(1, 2)) for layer in likely]))
        entries.append(entry)
    return entries


def _rounded(values: np.ndarray) -> list:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    if values.size and np.all(np.isnan(values)):
        return None
    return [float(f"{value:.12g}") for value in values]


def make_case(folder: str, case: str) -> None:
    """Writes one case; its random numbers depend on its name only."""
    rng = np.random.default_rng(list(case.encode()))
    config, block_matrix, inputs = make_config(case)
    directory = os.path.join(folder, case, "1")
    write_model(directory, config, make_tensors(config, block_matrix, rng))
    golden = make_golden(Reference(directory), inputs, rng)
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in golden)
    with open(os.path.join(folder, case, "golden.json"), "w", encoding="utf-8") as file:
        file.write(f"[\n{lines}\n]\n")


def main(folder: str) -> None:
    for case in CASES:
        make_case(folder, case)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "testdata"))
