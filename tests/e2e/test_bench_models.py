"""`./dev bench models --python PYTHON` on small models: rows, comparisons and figures, with peers that are made up."""

import argparse
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
from edgewise_process import BIN, ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import models  # noqa: E402
import peer_engine  # noqa: E402
import peers  # noqa: E402

ENCODER, DECODER = (2, 32, 2, 64, 30522), (2, 32, 2, 64, 30522)
# Answers as bench/peer_engine.py does, without an engine: always the same logits and tokens.
PEER = """#!{python}
import json, sys
name = sys.argv[2]
if name == "openvino":
    print(json.dumps({{"error": "No module named openvino"}}))
    sys.exit()
print(json.dumps({{"version": name + " 1"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "prepare":
        prepared, answer = asked, {{}}
    elif asked["do"] == "time":
        answer = {{"wall": 1.0, "cpu": 1.0}}
    else:
        texts = prepared["texts"]
        answer = {{"answer": [[1] * prepared["new"] for _ in texts] if prepared["new"] else [1.0] * 4 * len(texts)}}
    print(json.dumps(answer), flush=True)
"""


class BenchModelsTest(unittest.TestCase):
    def run_peers(self, only, **fields):
        """(rows, versions) of one round."""
        args = argparse.Namespace(**{"bin": BIN, "weights": "float32", "rounds": 1, "cpu": False} | fields)
        versions = {}
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(peers.ENCODERS, {"minilm": ENCODER}), \
                mock.patch.dict(peers.DECODERS, {"gpt2": DECODER}), mock.patch("peer_processes.SECONDS", 0.01):
            args.python = os.path.join(folder, "python")
            with open(args.python, "w", encoding="utf-8") as file:
                file.write(PEER.format(python=sys.executable))
            os.chmod(args.python, 0o755)
            chosen = [case for case in peers.cases() if case["name"] in only]
            self.assertEqual(len(chosen), len(only))
            return {row["name"]: row for row in peers.run(args, folder, chosen, versions)}, versions

    def test_ours_runs_every_kind_of_row_and_a_peer_that_differs_is_named(self):
        names = ["minilm 16 tokens", "minilm mixed, 1 at a time", "minilm mixed, 16 at once", "gpt2 prefill 32",
                 "gpt2 decode 32", "gpt2 prefill 32, 16 at once", "gpt2 generate 32, 16 at once"]
        rows, versions = self.run_peers(names)
        self.assertEqual(list(rows), names)
        self.assertEqual(versions["openvino"], "skipped: No module named openvino")
        self.assertEqual(versions["onnxruntime"], "onnxruntime 1")
        for name, row in rows.items():
            self.assertEqual(list(row["milliseconds"]), ["ours"], name)
            self.assertGreater(row["milliseconds"]["ours"], 0, name)
            wrong = row["errors"]["torch-decoder" if name.startswith("gpt2") else "torch-encoder"]
            self.assertRegex(wrong, "^(logits|tokens) differ", name)
        self.assertGreater(rows["gpt2 decode 32"]["bandwidth_share"], 0)
        self.assertEqual(peers.figures(list(rows.values())), {})

    def test_a_padded_batch_stands_beside_the_texts_one_after_another(self):
        with mock.patch("peers.differs", return_value=""):
            rows, _ = self.run_peers(["minilm mixed, 1 at a time", "minilm mixed, 16 at once"])
        row = rows["minilm mixed, 16 at once"]
        self.assertEqual(set(row["unpadded_over_ours"]), {"onnxruntime", "torch-encoder"})
        self.assertAlmostEqual(row["unpadded_over_ours"]["onnxruntime"] * row["milliseconds"]["ours"], 1000, delta=5)

    def test_with_rounded_weights_tokens_may_differ(self):
        rows, _ = self.run_peers(["gpt2 generate 32, 16 at once"], weights="int8", cpu=True)
        row = rows["gpt2 generate 32, 16 at once"]
        self.assertEqual((row["errors"], row["measured"], row["threads"]), ({}, "cpu", 1))
        self.assertEqual(set(row["over_ours"]), {"ctranslate2", "llama.cpp", "torch-decoder"})
        figure, = peers.figures([row]).items()
        self.assertEqual(figure[0], "generate, 16 at once, cpu, the best peer over ours")
        self.assertEqual(figure[1]["least"], min(row["over_ours"].values()))

    def test_few_texts_of_llama_cpp_may_differ(self):
        ours = [[1, 2]] * 16
        theirs = [[1, 3]] * 4 + ours[4:]
        case = {"new": 2}
        self.assertEqual(peers.differs(case, "llama.cpp", "float32", ours, theirs), "")
        self.assertIn("4 texts: [1, 3]", peers.differs(case, "ctranslate2", "float32", ours, theirs))
        self.assertIn("5 texts", peers.differs(case, "llama.cpp", "float32", ours, [[1, 3]] * 5 + ours[5:]))
        self.assertIn("1 texts", peers.differs(case, "ctranslate2", "int8", ours, [[1]] + ours[1:]))

    def test_a_token_of_one_text_leaves_out_its_prompt(self):
        moments = [np.array([second, 2.0 * second]) for second in (5, 6, 8)]
        self.assertEqual(peer_engine.span(np.zeros(2), moments, 1).tolist(), [1.5, 3])
        self.assertEqual(peer_engine.span(np.zeros(2), moments[:1], 1).tolist(), [5, 10])
        self.assertAlmostEqual(peer_engine.span(np.zeros(2), moments, 3)[0], 8 / 3)

    def test_the_file_has_what_was_measured_so_far(self):
        parser = models.flags()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows")
            args = parser.parse_args(["--python=/x/python", "--only=gpt2 decode", "--json", path])
            result = models.Result(args, parser)
            result.add("rows", {"name": "a", "task": "decode", "measured": "wall", "over_ours": {"p": 2.0, "q": 1.5}})
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        self.assertEqual(found["command"], "./dev bench models --python PYTHON --only 'gpt2 decode'")
        self.assertEqual(found["figures"]["decode, wall, the best peer over ours"],
                         {"rows": 1, "least": 1.5, "geometric_mean": 1.5})


if __name__ == "__main__":
    unittest.main()
