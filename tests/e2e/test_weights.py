"""--weights, from the flag to the answer."""

import json
import os
import unittest

from edgewise_process import EXAMPLES, TESTDATA, Server
from test_process import run_server

FOLDERS = TESTDATA + "_hugging_face"
TEXT = "a gripping , well acted film with a heart"


class WeightsTest(unittest.TestCase):
    def test_every_format_is_named_and_is_near_float32(self):
        with open(os.path.join(FOLDERS, "bert_sequence", "golden.json"), encoding="utf-8") as file:
            golden = json.load(file)["inputs"][0]
        ids = ",".join(map(str, golden["token_ids"]))
        answers = {}
        for weights, error in (("float32", 1e-4), ("bfloat16", 0.05), ("int8", 0.25)):
            with Server(FOLDERS, f"--weights={weights}") as server:
                answer = server.predict("--model", "bert_sequence", "--token_ids", ids, "--logits")
            answers[weights] = answer["predictions"][0]["logits"]
            self.assertEqual(answer["device"].split("/")[-1], "fp32" if weights == "float32" else weights)
            for got, expected in zip(answers[weights], golden["logits"], strict=True):
                self.assertLess(abs(got - expected), error * max(1.0, max(map(abs, golden["logits"]))))
        self.assertEqual(len(set(map(tuple, answers.values()))), 3, "each format has answers of its own")

    def test_samples_and_budgets_repeat_to_the_byte(self):
        for weights in ("bfloat16", "int8"):
            with Server(EXAMPLES, f"--weights={weights}") as server:
                flags = ("--model", "sentiment", "--text", TEXT, "--samples", "8", "--max_density", "0.2", "--seed")
                first, again, other = (server.predict(*flags, seed)["predictions"] for seed in "778")
                self.assertEqual(first, again)
                self.assertNotEqual(first, other, "another seed draws other edges")

    def test_what_is_not_built_is_refused_at_the_start(self):
        for flags, words in ((("--weights=int4",), 'weights is "int4"; allowed: float32, bfloat16, int8'),
                             (("--weights=int8", "--device=cuda"), "which the CPU alone serves")):
            result = run_server(f"--model_repository={TESTDATA}", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                *flags)
            self.assertNotEqual(result.returncode, 0, flags)
            self.assertIn(words, result.stderr, flags)


if __name__ == "__main__":
    unittest.main()
