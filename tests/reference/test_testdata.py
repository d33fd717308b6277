"""tests/testdata: what the generator makes, able to tell a wrong answer, and small."""

import filecmp
import json
import os
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import golden_cases  # noqa: E402
import make_testdata  # noqa: E402
from edgewise_reference import Reference  # noqa: E402

TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata")
SHORT_CASES = ("pairwise-values", "pairwise-buckets", "features", "ssa-schedule")  # n * n numbers, or three layers


def model(case: str) -> Reference:
    return Reference(os.path.join(TESTDATA, case, "1"))


def golden(case: str) -> list:
    with open(os.path.join(TESTDATA, case, "golden.json"), encoding="utf-8") as file:
        return json.load(file)


class TestdataTest(unittest.TestCase):
    def test_is_what_the_generator_makes(self):
        with tempfile.TemporaryDirectory() as folder:
            make_testdata.main(folder)
            self.assertEqual(sorted(os.listdir(folder)), sorted(golden_cases.CASES))
            for case in golden_cases.CASES:
                for name in ("config.json", "model.safetensors"):
                    files = [os.path.join(root, case, "1", name) for root in (folder, TESTDATA)]
                    self.assertTrue(filecmp.cmp(*files, shallow=False), f"{case}/1/{name}")
                with open(os.path.join(folder, case, "golden.json"), encoding="utf-8") as file:
                    made = json.load(file)
                self._same(made, golden(case), case)

    def _same(self, made: object, committed: object, where: str) -> None:
        """Equal, numbers to 1e-9 (another BLAS may sum in another order)."""
        self.assertIs(type(made), type(committed), where)
        if isinstance(made, float):
            self.assertLessEqual(abs(made - committed), 1e-9, where)
        elif isinstance(made, (list, dict)):
            self.assertEqual(len(made), len(committed), where)
            for key in made if isinstance(made, dict) else range(len(made)):
                self._same(made[key], committed[key], f"{where}/{key}")
        else:
            self.assertEqual(made, committed, where)

    def test_every_case_can_tell_inputs_apart(self):
        for case in golden_cases.CASES:
            first = [entry["logits"] for entry in golden(case)]
            if model(case).config["task"] == "token-classification":
                first = [next(row for row in rows if row is not None) for rows in first]
            values = np.array(first)
            self.assertLess(np.abs(values).max(), 20, case)
            self.assertGreater(values.std(axis=0).min(), 0.05, case)

    def test_the_lengths_and_graphs_that_are_promised(self):
        for case in golden_cases.CASES:
            lengths = [len(entry.get("token_ids") or entry["features"]) for entry in golden(case)]
            self.assertTrue(1 in lengths and max(lengths) >= 17, case)
            if case not in SHORT_CASES:
                self.assertIn(48, lengths, case)
        heads = [head for entry in golden("sbm") for layer in entry["graph"]["layers"] for head in layer["heads"]]
        self.assertTrue(any(0 in np.diff(head["row_offsets"]) for head in heads))
        self.assertEqual(len(golden("sbm-pair")[0]["graph"]["layers"]), 4)

    def test_graphs_that_the_models_choose_are_what_the_logits_come_from(self):
        for case in golden_cases.CASES:
            reference = model(case)
            for entry in golden(case):
                if "seed" not in entry:
                    continue
                first = entry.get("token_ids") or entry["features"]
                given = {"bias": entry.get("bias_values") or entry.get("bias_buckets")}
                drawn = reference.logits(first, entry.get("second"), draw=(entry["seed"], entry["sample"]), **given)
                np.testing.assert_allclose(drawn, entry["logits"], rtol=0, atol=1e-9, err_msg=case)

    def test_log_probabilities_are_those_of_a_growing_text(self):
        """The probability of a token does not depend on what follows it."""
        for case in golden_cases.CASES:
            reference = model(case)
            if reference.config["task"] != "causal-lm":
                continue
            entry = golden(case)[0]
            ids = entry["token_ids"][:12]
            draw = (entry.get("seed", 0), entry.get("sample", 0))
            for end in range(1, len(ids)):
                if reference.config["pad_token_id"] in (ids[end], *ids[:end]):
                    break
                logits = reference.logits(ids[:end], draw=draw)
                expected = logits[ids[end]] - np.log(np.exp(logits).sum())
                self.assertAlmostEqual(entry["log_probabilities"][end - 1], expected, places=9, msg=case)

    def test_is_small(self):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(TESTDATA) for name in names]
        self.assertLess(sum(os.path.getsize(path) for path in files), 2 << 20)



if __name__ == "__main__":
    unittest.main()
