"""The forward of causal language models, regressions and features: promises that hold whatever the weights are."""

import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from edgewise_reference import Reference  # noqa: E402

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")
IDS = [3, 17, 5, 5, 9, 22, 1, 14, 8, 2, 11]


def model(case: str, **changes: object) -> Reference:
    """A model of the test data, its attention replaced where `attention` is given."""
    reference = Reference(os.path.join(TESTDATA, case, "1"))
    if "attention" in changes:
        reference._attention = [changes["attention"]] * reference.config["num_hidden_layers"]
    return reference


class CausalTest(unittest.TestCase):
    def test_a_token_does_not_see_what_follows(self):
        for case in ("lm-dense", "lm-untied", "lm-alibi", "lm-relative"):
            reference = model(case)
            whole = reference.token_logits(IDS)
            self.assertEqual(whole.shape, (11, 24))
            for end in range(1, 11):
                np.testing.assert_allclose(reference.token_logits(IDS[:end]), whole[:end], rtol=0, atol=1e-12)
            np.testing.assert_array_equal(reference.logits(IDS), whole[-1])

    def test_log_probabilities_by_hand(self):
        reference = model("lm-dense")
        found = reference.log_probabilities(IDS)
        self.assertEqual(found.shape, (10,))
        for t in range(1, 11):
            logits = reference.logits(IDS[:t])
            expected = logits[IDS[t]] - np.log(sum(np.exp(value) for value in logits))
            self.assertAlmostEqual(found[t - 1], expected, places=11)
        self.assertEqual(reference.log_probabilities([5]).shape, (0,))

    def test_pads_are_not_scored(self):
        reference = model("lm-alibi")  # its distances count interior pads
        ids = [3, 0, 5, 9, 0, 0, 7]
        self.assertEqual(reference.token_logits(ids).shape, (4, 24))
        self.assertEqual(reference.log_probabilities(ids).shape, (3,))
        trailing = reference.log_probabilities(ids + [0, 0])
        np.testing.assert_allclose(trailing, reference.log_probabilities(ids), rtol=0, atol=1e-12)
        self.assertGreater(np.abs(reference.log_probabilities([3, 5, 9, 7]) - trailing).max(), 1e-4)

    def test_the_output_layer(self):
        reference = model("lm-dense")
        x = reference._encode_all(IDS, None, None)[0][0]
        expected = [[sum(a * b for a, b in zip(row, word)) for word in reference.tensors["embeddings.word.weight"]]
                    for row in x]
        np.testing.assert_allclose(reference.token_logits(IDS), expected, rtol=0, atol=1e-12)
        untied = model("lm-untied")
        before = untied.token_logits(IDS)
        untied.tensors["lm_head.weight"] = 2 * untied.tensors["lm_head.weight"]
        np.testing.assert_allclose(untied.token_logits(IDS), 2 * before, rtol=0, atol=1e-12)

    def test_patterns_that_are_dense(self):
        whole = {"kind": "ssa", "bias": "local", "windows": 1, "sigma": 0.5}
        for attention in (
            whole,
            {**whole, "grid": [6, 8]},
            {"kind": "ssa", "bias": "none", "keep": 48},
            {"kind": "ssa", "bias": "none", "windows": 1},
            {"kind": "block", "block_size": 48, "pattern": "diagonal"},
            {"kind": "block", "block_size": 5, "pattern": "local", "width": 9},
        ):
            for case in ("lm-dense", "alibi", "regression"):
                expected = model(case).logits(IDS)
                found = model(case, attention=attention).logits(IDS, draw=(1, 0))
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

    def test_last_layers_are_the_only_sampled_ones(self):
        reference = model("lm-ssa-schedule")
        layers = reference.attended(IDS * 2, draw=(4, 0))["layers"]
        counts = [len(layer["heads"][0]["keys"]) for layer in layers]
        self.assertEqual(counts[0], 22 * 23 / 2)
        self.assertLess(max(counts[1:]), counts[0])
        for layer in layers:
            self.assertEqual(layer["heads"][0], layer["heads"][1])

    def test_a_draw_is_its_graph(self):
        for case in ("lm-ssa-local", "lm-ssa-none", "lm-ssa-grid", "lm-block-learned"):
            reference = model(case)
            graph = reference.attended(IDS, draw=(77, 3))
            drawn = reference.token_logits(IDS, draw=(77, 3))
            np.testing.assert_array_equal(reference.token_logits(IDS, graph=graph), drawn)
            if "ssa" in case:
                self.assertNotEqual(reference.attended(IDS, draw=(77, 4)), graph)

    def test_an_edge_to_a_later_token_is_an_error(self):
        later = {"row_offsets": [0, 2, 3], "keys": [0, 1, 1]}
        with self.assertRaises(ValueError):
            model("lm-dense").logits([3, 4], graph={"layers": [{"heads": [later] * 2}] * 2})

    def test_samples_need_a_draw_or_a_graph(self):
        with self.assertRaises(ValueError):
            model("lm-ssa-local").logits(IDS)


class FeaturesTest(unittest.TestCase):
    def test_one_row_by_hand(self):
        """With one row attention is the value itself."""
        reference = model("features-regression")
        row = np.array([0.5, -1.0, 2.0, 0.25, 0.0, 1.5])
        w = reference.tensors

        def linear(x, name):
            return w[name + ".weight"] @ x + w[name + ".bias"]

        def norm(x, name):
            return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

        x = linear(row, "embeddings.features") + w["embeddings.position.weight"][0]
        for _ in range(2):
            value = linear(norm(x, "layers.0.attention_norm"), "layers.0.attention.value")
            x = x + linear(value, "layers.0.attention.output")
            inner = reference._activation(linear(norm(x, "layers.0.mlp_norm"), "layers.0.mlp.up"))
            x = x + linear(inner, "layers.0.mlp.down")
        expected = linear(norm(x, "final_norm") / 48, "classifier.output")  # the mean divides by N
        np.testing.assert_allclose(reference.logits([row.tolist()]), expected, rtol=0, atol=1e-12)

    def test_a_row_of_zeros_is_no_pad(self):
        reference = model("features")
        rows, n = np.zeros((3, 6)).tolist(), 3
        none = {"bias": [0.0] * n * n}
        graph = reference.attended(rows, **none)
        self.assertEqual(graph["layers"][0]["heads"][0]["row_offsets"], [0, 3, 6, 9])

    def test_what_has_no_answer_is_an_error(self):
        for rows in ([], [[0.0] * 5], [[0.0] * 6] * 49, [3, 4]):
            with self.subTest(rows=rows), self.assertRaises(ValueError):
                model("features").logits(rows)

    def test_a_bias_counts(self):
        rows = np.random.default_rng(2).standard_normal((4, 6)).tolist()
        reference = model("features")
        none = reference.logits(rows)
        np.testing.assert_array_equal(reference.logits(rows, bias=[0.0] * 16), none)
        np.testing.assert_allclose(reference.logits(rows, bias=[2.5] * 16), none, rtol=0, atol=1e-12)  # alike in a row
        self.assertGreater(np.abs(reference.logits(rows, bias=list(range(16))) - none).max(), 1e-3)
        only_self = np.where(np.eye(4), 0.0, -1e9).reshape(-1).tolist()
        diagonal = {"row_offsets": [0, 1, 2, 3, 4], "keys": [0, 1, 2, 3]}
        graph = {"layers": [{"heads": [diagonal] * 2}] * 2}
        given = reference.logits(rows, graph=graph)
        np.testing.assert_allclose(reference.logits(rows, bias=only_self), given, rtol=0, atol=1e-12)


if __name__ == "__main__":
    unittest.main()
