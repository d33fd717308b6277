"""Features, biases, values and overrides, from a file of inputs to the answer."""

import json
import os
import sys
import tempfile
import unittest

import numpy as np

from edgewise_process import ROOT, TESTDATA, Server

sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
from edgewise_reference import Reference  # noqa: E402


class KindsTest(unittest.TestCase):
    def ask(self, server: Server, model: str, line: dict, *arguments: str) -> dict:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            json.dump(line, file)
            file.flush()
            return server.predict("--model", model, "--input", file.name, *arguments)["predictions"][0]

    def refuse(self, server: Server, model: str, line: dict, words: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            json.dump(line, file)
            file.flush()
            result = server.cli("predict", "--model", model, "--input", file.name)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(words, result.stdout + result.stderr)

    def test_features_and_biases_reach_the_model(self):
        rows = np.random.default_rng(1).normal(size=(7, 6)).round(3)
        bias = np.random.default_rng(2).normal(size=(7, 7)).round(3)
        with Server(TESTDATA) as server:
            plain = self.ask(server, "features", {"features": rows.tolist()}, "--logits")
            biased = self.ask(server, "features", {"features": rows.tolist(), "bias_values": bias.tolist()}, "--logits")
            self.refuse(server, "features", {"features": rows[:, :5].tolist()}, "features.columns is 5; the model takes 6")
            self.refuse(server, "features", {"features": rows.tolist(), "bias_values": bias[:6, :6].tolist()},
                        "bias.values has 36 entries")
            self.refuse(server, "sbm", {"features": rows.tolist()}, "takes tokens")
        reference = Reference(os.path.join(TESTDATA, "features", "1"))
        np.testing.assert_allclose(plain["logits"], reference.logits(rows.tolist()), atol=1e-4)
        np.testing.assert_allclose(biased["logits"], reference.logits(rows.tolist(), bias=bias.ravel().tolist()),
                                   atol=1e-4)
        self.assertNotEqual(plain["logits"], biased["logits"])

    def test_buckets_reach_the_model(self):
        ids = [1, 2, 3, 4]
        with Server(TESTDATA) as server:
            plain = self.ask(server, "pairwise-buckets", {"token_ids": ids}, "--seed", "1")
            biased = self.ask(server, "pairwise-buckets", {"token_ids": ids, "bias_buckets": [[0, 1, 2, 3]] * 4},
                              "--seed", "1")
            self.refuse(server, "pairwise-buckets", {"token_ids": ids, "bias_buckets": [[9] * 4] * 4},
                        "bias.buckets[0] is 9; the model has 9 buckets")
        self.assertNotEqual(plain["probabilities"], biased["probabilities"])

    def test_values_of_a_regression_are_shown_with_their_spread(self):
        with Server(TESTDATA) as server:
            plain = self.ask(server, "regression", {"token_ids": [3, 1, 4, 1, 5]})
            answer = self.ask(server, "regression", {"token_ids": [3, 1, 4, 1, 5]}, "--samples", "4", "--keep", "2")
            shown = server.cli("predict", "--model", "regression", "--token_ids", "3,1,4,1,5").stdout
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
                json.dump({"token_ids": [3, 1, 4, 1, 5], "value": plain["values"][0] - 0.25}, file)
                file.flush()
                judged = server.cli("predict", "--model", "regression", "--input", file.name).stdout
        reference = Reference(os.path.join(TESTDATA, "regression", "1"))
        np.testing.assert_allclose(plain["values"], reference.logits([3, 1, 4, 1, 5]), atol=1e-4)
        self.assertIn("off by 0.2500", judged)
        self.assertIn("error        mean 0.2500 (absolute, of 1)", judged)
        self.assertEqual(plain["stddev"], [0, 0])
        self.assertEqual(len(answer["values"]), 2)
        self.assertEqual(answer["probabilities"], [])
        self.assertGreater(answer["stddev"][0], 0)
        self.assertIn("values       ", shown)
        self.assertNotIn("uncertainty", shown)

    def test_an_override_samples_a_dense_model(self):
        ids = ",".join(str(1 + i % 20) for i in range(40))
        with Server(TESTDATA) as server:
            dense = server.predict("--model", "dense", "--token_ids", ids)["predictions"][0]
            sampled = server.predict("--model", "dense", "--token_ids", ids, "--windows", "4", "--sigma", "0.1",
                                     "--samples", "8")["predictions"][0]
            refused = server.cli("predict", "--model", "sbm", "--token_ids", ids, "--keep", "4")
        self.assertEqual(dense["edges"]["density"], 1.0)
        self.assertEqual(sampled["edges"]["density"], 0.25)
        self.assertGreater(max(sampled["stddev"]), 0)
        self.assertIn("override.kind is \"ssa\"; this model's attention is sbm/bernoulli", refused.stderr)

    def test_next_token_and_likelihood_of_a_language_model_are_those_of_the_reference(self):
        ids = [3, 1, 4, 1, 5, 9, 2, 6]
        with Server(TESTDATA) as server:
            for model in ("lm-dense", "lm-ssa-local", "lm-block-local", "lm-relative"):
                answer = server.predict("--model", model, "--token_ids", ",".join(map(str, ids)), "--logits", "--seed",
                                        "9")["predictions"][0]
                reference = Reference(os.path.join(TESTDATA, model, "1"))
                np.testing.assert_allclose(answer["logits"], reference.logits(ids, draw=(9, 0)), atol=1e-4)
                likelihood = reference.log_probabilities(ids, draw=(9, 0)).sum()
                self.assertEqual(answer["scored_tokens"], 7)
                self.assertAlmostEqual(answer["log_likelihood"], likelihood, places=3)


if __name__ == "__main__":
    unittest.main()
