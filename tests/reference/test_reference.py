"""The oracle itself: Philox against known answers, the forward of classifiers against sums written out."""

import math
import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from edgewise_reference import Reference  # noqa: E402
from model_files import edge_counts  # noqa: E402
from philox import philox4x32  # noqa: E402

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")


def model(case: str) -> Reference:
    return Reference(os.path.join(TESTDATA, case, "1"))


def full_graph(layers: int, heads: int, ids: list, pad: int = 0) -> dict:
    """Every valid pair."""
    valid = [i for i, token in enumerate(ids) if token != pad]
    offsets, keys = [0], []
    for token in ids:
        keys += valid if token != pad else []
        offsets.append(len(keys))
    return {"layers": [{"heads": [{"row_offsets": offsets, "keys": keys}] * heads}] * layers}


class PhiloxTest(unittest.TestCase):
    ONES = 0xFFFFFFFF
    KNOWN = (  # Random123's kat_vectors for philox4x32, 10 rounds: counter, key, result
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    )

    def test_known_answers(self):
        for counter, key, expected in self.KNOWN:
            self.assertEqual(tuple(int(word) for word in philox4x32(counter, key)), expected)

    def test_arrays_are_many_single_calls(self):
        counters = np.arange(24, dtype=np.uint32).reshape(3, 2, 4) * np.uint32(0x9E3779B9)
        together = philox4x32(counters, (1, 2))
        self.assertEqual((together.shape, together.dtype), ((3, 2, 4), np.uint32))
        for i in range(3):
            for j in range(2):
                np.testing.assert_array_equal(together[i, j], philox4x32(counters[i, j], (1, 2)))


class ForwardTest(unittest.TestCase):
    def test_trailing_pads_change_nothing(self):
        for case in ("dense", "dense-classifier-hidden", "dense-tied-cls"):
            reference = model(case)
            alone = reference.logits([5, 0, 7, 9])
            np.testing.assert_allclose(reference.logits([5, 0, 7, 9] + [0] * 20), alone, rtol=0, atol=1e-12)
            self.assertGreater(np.abs(reference.logits([5, 7, 9]) - alone).max(), 1e-3)  # interior pads count

    def test_a_full_graph_is_dense_attention(self):
        reference, ids = model("dense"), [3, 9, 0, 4, 4, 1]
        given = reference.logits(ids, graph=full_graph(2, 2, ids))
        np.testing.assert_allclose(given, reference.logits(ids), rtol=0, atol=1e-12)

    def test_rows_without_edges_give_zero(self):
        reference, ids = model("dense"), [3, 9, 4]
        none = {"layers": [{"heads": [{"row_offsets": [0, 0, 0, 0], "keys": []}] * 2}] * 2}
        zeroed = model("dense")
        for layer in range(2):
            for part in ("weight", "bias"):
                zeroed.tensors[f"layers.{layer}.attention.value.{part}"] *= 0
        np.testing.assert_allclose(reference.logits(ids, graph=none), zeroed.logits(ids), rtol=0, atol=1e-12)

    def test_multiplicity_counts_in_the_softmax(self):
        head = {"row_offsets": [0, 3, 4], "keys": [0, 1, 1, 0]}
        np.testing.assert_array_equal(edge_counts(head, np.array([True, True])), [[1, 2], [1, 0]])

    def test_one_token_by_hand(self):
        """With one token attention is the value itself; the rest is written out here with plain sums."""
        reference = model("dense")
        weights, token = reference.tensors, 11

        def linear(x, name):
            rows, bias = weights[name + ".weight"], weights[name + ".bias"]
            return [sum(float(w) * v for w, v in zip(row, x)) + float(b) for row, b in zip(rows, bias)]

        def norm(x, name):
            mean = sum(x) / len(x)
            variance = sum((v - mean) ** 2 for v in x) / len(x)
            scaled = [(v - mean) / math.sqrt(variance + 1e-5) for v in x]
            affine = zip(scaled, weights[name + ".weight"], weights[name + ".bias"])
            return [v * float(w) + float(b) for v, w, b in affine]

        word, position = weights["embeddings.word.weight"][token], weights["embeddings.position.weight"][0]
        x = [float(a + b) for a, b in zip(word, position)]
        for layer in range(2):
            prefix = f"layers.{layer}."
            value = linear(norm(x, prefix + "attention_norm"), prefix + "attention.value")
            x = [a + b for a, b in zip(x, linear(value, prefix + "attention.output"))]
            inner = linear(norm(x, prefix + "mlp_norm"), prefix + "mlp.up")
            inner = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in inner]
            x = [a + b for a, b in zip(x, linear(inner, prefix + "mlp.down"))]
        logits = linear(norm(x, "final_norm"), "classifier.output")
        np.testing.assert_allclose(reference.logits([token]), logits, rtol=0, atol=1e-11)

    def test_edge_probability_by_hand(self):
        reference = model("sbm")
        weights, ids = reference.tensors, [4, 0, 9, 17]
        found = reference.probabilities_of_edges(ids)
        self.assertEqual(len(found), 1)  # the second layer's input depends on the draw
        x = weights["embeddings.word.weight"][ids] + weights["embeddings.position.weight"][:4]
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = x * weights["layers.0.attention_norm.weight"] + weights["layers.0.attention_norm.bias"]

        def membership(part, row, head):
            name = "layers.0.attention."
            z = (weights[name + part + ".weight"] @ x[row] + weights[name + part + ".bias"])[head * 8 : head * 8 + 8]
            z = np.maximum(weights[name + "membership.0.weight"] @ z + weights[name + "membership.0.bias"], 0)
            z = weights[name + "membership.1.weight"] @ z + weights[name + "membership.1.bias"]
            return [1 / (1 + math.exp(-float(z @ c))) for c in weights[name + "clusters"][head]]

        for head in range(2):
            clusters = weights["layers.0.attention.clusters"][head]
            block = [[math.exp(a @ b) for b in clusters] for a in clusters]
            total = sum(map(sum, block))
            for i in range(4):
                for j in range(4):
                    q, k = membership("query", i, head), membership("key", j, head)
                    p = sum(q[s] * block[s][t] * k[t] for s in range(12) for t in range(12)) / total + 0.01
                    p = 0.0 if 0 in (ids[i], ids[j]) else min(p, 1.0)
                    self.assertAlmostEqual(found[0][head, i, j], p, places=12)

    def test_laws_and_forced_edges(self):
        ids = list(range(1, 20))
        rates = model("sbm-padded-mean").probabilities_of_edges(ids, rates=True)[0]
        p = model("sbm-padded-mean").probabilities_of_edges(ids)[0]
        np.testing.assert_allclose(p, 1 - np.exp(-rates), rtol=0, atol=1e-12)
        p = model("sbm-tied").probabilities_of_edges(ids)[0]
        self.assertTrue(np.all(p[:, np.arange(19), np.arange(19)] == 1.0))
        self.assertTrue(np.all(p[:, 0, 1] < 1.0))
        p = model("sbm-cls").probabilities_of_edges(ids)[0]  # local_window 5: two to each side
        self.assertEqual(p.shape, (2, 20, 20))
        self.assertTrue(np.all(p[:, 4, 2:7] == 1.0) and np.all(p[:, 4, [1, 7]] < 1.0))

    def test_cls_is_put_in_front_and_drops_the_last_position_at_full_length(self):
        reference = model("dense-tied-cls")
        np.testing.assert_array_equal(reference.as_seen([5, 6]), [39, 5, 6])
        long = list(range(1, 39)) + list(range(1, 11))
        self.assertEqual(len(long), 48)
        np.testing.assert_array_equal(reference.as_seen(long), [39] + long[:-1])
        np.testing.assert_array_equal(reference.logits(long), reference.logits(long[:-1]))

    def test_sinusoidal_positions(self):
        positions = model("dense-tokens")._positions(4)
        for p in range(4):
            for i in range(8):
                angle = p / 10000 ** (2 * i / 16)
                self.assertAlmostEqual(positions[p, 2 * i], math.sin(angle), places=14)
                self.assertAlmostEqual(positions[p, 2 * i + 1], math.cos(angle), places=14)

    def test_what_has_no_answer_is_an_error(self):
        reference = model("sbm")
        for ids, graph in (
            ([], None),
            ([0, 0], None),
            ([40], None),
            ([-1], None),
            ([1] * 49, None),
            ([1, 2], None),  # sampled, no graph
            ([1, 2], full_graph(1, 2, [1, 2])),
            ([1, 2], full_graph(2, 1, [1, 2])),
            ([1, 2], full_graph(2, 2, [1, 2, 3])),
            ([1, 0], full_graph(2, 2, [1, 2])),  # an edge from or to a pad
        ):
            with self.subTest(ids=ids), self.assertRaises(ValueError):
                reference.logits(ids, graph=graph)


if __name__ == "__main__":
    unittest.main()
