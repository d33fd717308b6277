"""A checkpoint of nanoGPT, converted and served: what it writes and how it scores a text is what PyTorch computes,
inside and beyond the context (stored by tests/tools/make_nanogpt_fixture.py)."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from edgewise_process import ROOT, Server

DATA = os.path.join(ROOT, "tests", "tools", "data")
CHECKPOINTS = {"verse": "nanogpt_verse", "verse-bias": "nanogpt_verse_bias"}  # as they are served: the files
CHARACTERS = "\n !,.:abcdefghinorstuwä"
CLOSE = 1e-4  # logits nearer than this may change places


class NanogptTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.expected = {}
        for name, file in CHECKPOINTS.items():
            convert = subprocess.run(
                [sys.executable, os.path.join(ROOT, "tools", "convert.py"), "nanogpt", "--checkpoint",
                 os.path.join(DATA, file + ".pt"), "--meta", os.path.join(DATA, "nanogpt.meta.pkl"), "--output",
                 os.path.join(folder.name, name, "1")], timeout=60, capture_output=True, text=True, check=False)
            if convert.returncode != 0:
                raise AssertionError(convert.stderr)
            with open(os.path.join(DATA, file + ".expected.json"), encoding="utf-8") as expected:
                cls.expected[name] = json.load(expected)
        cls.server = cls.enterClassContext(Server(folder.name))

    def cases(self, kind: str) -> list:
        """(name of the model, precision of PyTorch, stored case) of all."""
        return [(name, precision, case) for name, expected in self.expected.items()
                for precision, kinds in expected.items() for case in kinds[kind]]

    def done(self, *arguments: str) -> str:
        result = self.server.cli(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def greedy(self, model: str, prompt: list, count: int, *more: str) -> list:
        """The messages of a generation."""
        lines = self.done("generate", "--model", model, *prompt_flags(prompt), "--max_new_tokens", str(count),
                          "--temperature", "0", "--json", *more).splitlines()
        return [json.loads(line) for line in lines]

    def test_greedy_tokens_are_those_of_pytorch_far_beyond_the_context(self):
        compared = 0
        for model, precision, case in self.cases("continuations"):
            with self.subTest(model=model, precision=precision, case=case):
                tokens, margins = case["tokens"], case["margins"]
                messages = self.greedy(model, case["prompt"], len(tokens))
                sure = next((i for i, margin in enumerate(margins) if margin < CLOSE), len(tokens))
                self.assertEqual([message["token_id"] for message in messages][:sure], tokens[:sure])
                np.testing.assert_allclose([message["log_probability"] for message in messages][:sure],
                                           case["log_probabilities"][:sure], rtol=0, atol=1e-4)
                self.assertTrue(messages[-1]["done"])
                self.assertEqual(messages[-1]["finish_reason"], "length")
                self.assertEqual(messages[-1]["truncated_tokens"], max(0, len(case["prompt"]) - 16))
                compared += max(0, sure - (16 - min(16, len(case["prompt"]))))
        self.assertGreater(compared, 300)  # the stored texts go on beyond the context, with clear choices

    def test_likelihoods_are_those_of_pytorch(self):
        for model, precision, case in self.cases("texts"):
            with self.subTest(model=model, precision=precision, case=case):
                ids = ",".join(map(str, case["token_ids"]))
                answer = json.loads(self.done("predict", "--model", model, "--token_ids", ids, "--stride",
                                              str(case["stride"]), "--each_sample", "--json"))["predictions"][0]
                expected = case["log_probabilities"]
                self.assertEqual(answer["scored_tokens"], len(expected))
                np.testing.assert_allclose(np.log(answer["sample_outputs"][0]["token_probabilities"]), expected, rtol=0,
                                           atol=1e-4)
                self.assertAlmostEqual(answer["log_likelihood"], sum(expected), delta=1e-4 * abs(sum(expected)))
                self.assertAlmostEqual(answer["perplexity"], math.exp(-sum(expected) / len(expected)), delta=1e-3)

    def test_the_commands_show_the_same_numbers(self):
        for model, precision, case in self.cases("texts"):
            with self.subTest(model=model, precision=precision, case=case):
                text = "".join(CHARACTERS[i] for i in case["token_ids"])
                expected = -sum(case["log_probabilities"]) / len(case["log_probabilities"])
                arguments = ("score", "--model", model, "--text", text, "--stride", str(case["stride"]))
                score = json.loads(self.done(*arguments, "--json"))
                self.assertEqual(score["tokens"], len(text) - 1)
                self.assertAlmostEqual(score["loss"], expected, delta=1e-4)
                self.assertAlmostEqual(score["perplexity"], math.exp(expected), delta=1e-3)
                self.assertAlmostEqual(score["bits_per_byte"],
                                       expected * (len(text) - 1) / len(text.encode()) / math.log(2), delta=1e-4)
                self.assertIn(f"loss         {score['loss']:.4f} nats/token", self.done(*arguments))
        for model, precision, case in self.cases("continuations"):
            with self.subTest(model=model, precision=precision, case=case):
                shown = self.done("generate", "--model", model, *prompt_flags(case["prompt"]), "--max_new_tokens",
                                  str(len(case["tokens"])), "--temperature", "0")
                text, line = shown.removesuffix("\n").rsplit("\n", 1)
                self.assertTrue(text.endswith("".join(CHARACTERS[i] for i in case["tokens"]).rstrip("\n")), text)
                self.assertRegex(line, r"^40 tokens in .* density 100\.?0* %, ended by length")

    def test_the_likeliest_next_token_of_a_text_begins_its_continuation(self):
        for model, precision, case in self.cases("continuations"):
            with self.subTest(model=model, precision=precision, case=case):
                ids = ",".join(map(str, case["prompt"]))
                best = json.loads(self.done("predict", "--model", model, "--token_ids", ids, "--top_k", "1", "--json"))
                top = best["predictions"][0]["top"][0]
                self.assertEqual(top["label"], CHARACTERS[case["tokens"][0]])
                self.assertAlmostEqual(math.log(top["probability"]), case["log_probabilities"][0], delta=1e-4)


def prompt_flags(prompt: list) -> tuple:
    """The prompt as text, cut to the context as nanoGPT cuts it."""
    return ("--prompt", "".join(CHARACTERS[i] for i in prompt), "--truncate", "head")


if __name__ == "__main__":
    unittest.main()
