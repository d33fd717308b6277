"""docs/convert.md as a newcomer follows it: an authors' checkpoint, converted, served, asked; the answers are those of
the float64 reference."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from edgewise_process import EXAMPLES, ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
from edgewise_reference import Reference  # noqa: E402

DATA = os.path.join(ROOT, "tests", "tools", "data")


class NewcomerTest(unittest.TestCase):
    def test_a_converted_checkpoint_is_served(self):
        with tempfile.TemporaryDirectory() as repository:
            output = os.path.join(repository, "mine", "1")
            subprocess.run([sys.executable, os.path.join(ROOT, "tools", "convert.py"), "sbm-transformer", "--checkpoint",
                            os.path.join(DATA, "pair_sbm.model"), "--config", os.path.join(DATA, "pair_sbm.json"),
                            "--output", output], check=True, timeout=60, capture_output=True)
            reference = Reference(output)
            first, second = [3, 5, 0, 7], [2, 4, 6, 1, 3]
            arguments = ("--model", "mine", "--token_ids", "3,5,0,7", "--second_token_ids", "2,4,6,1,3")
            with open(os.path.join(output, "config.json")) as file:
                config = json.load(file)
            with Server(repository) as server:
                dense = server.predict(*arguments, "--dense", "--logits")["predictions"][0]
                sampled = server.predict(*arguments, "--samples", "16", "--seed", "1", "--layer_stats")["predictions"][0]
        everything = {"layers": [{"heads": [complete(ids)] * config["num_attention_heads"]}
                                 for ids in (first, second) for _ in range(config["num_hidden_layers"])]}
        np.testing.assert_allclose(dense["logits"], reference.logits(first, second, everything), atol=1e-4)
        self.assertEqual(sampled["samples"], 16)
        self.assertGreater(float(sampled["edges"]["expected_edges"]), 0)
        self.assertLess(sampled["edges"]["density"], 1)

    def test_evaluate_says_what_predict_says_at_each_cap(self):
        data = os.path.join(ROOT, "examples", "data", "sentiment.jsonl")
        with open(data) as file:
            labels = [json.loads(line)["label"] for line in file]
        common = ("--model", "sentiment", "--seed", "1", "--json")
        with Server(EXAMPLES) as server:
            result = server.cli("evaluate", "--data", data, "--caps", "0.5%,4%,100%", *common)
            asked = {name: server.cli("predict", "--input", data, *flags, *common).stdout for name, flags in (
                ("dense", ["--dense"]), ("no cap", []), ("cap 0.5 %", ["--max_density", "0.005"]),
                ("cap 4 %", ["--max_density", "0.04"]), ("cap 100 %", ["--max_density", "1"]))}
        self.assertEqual(result.returncode, 0, result.stderr)
        settings = json.loads(result.stdout)["settings"]
        self.assertEqual([setting["setting"] for setting in settings], list(asked))
        for setting in settings:
            lines = [json.loads(line) for line in asked[setting["setting"]].splitlines()]
            answers = [(line["predictions"][0], label) for line, label in zip(lines, labels) if "predictions" in line]
            edges = [float(answer["edges"]["edges"]) for answer, _ in answers]
            self.assertEqual(setting["answered"], len(answers))
            self.assertEqual(setting["refused"], len(labels) - len(answers))
            self.assertEqual(setting["right"], sum(answer["label_id"] == label for answer, label in answers))
            self.assertEqual(setting["most_edges"], max(edges))
            self.assertAlmostEqual(setting["edges"], sum(edges) / len(edges), places=6)
            self.assertEqual(setting["over_cap"], 0)
        refused = [setting["refused"] for setting in settings]
        self.assertGreater(refused.pop(2), 0)  # half a percent of the shortest texts is less than an edge
        self.assertEqual(refused, [0, 0, 0, 0])

    def test_every_bundled_model_answers(self):
        names = sorted(os.listdir(EXAMPLES))
        self.assertTrue(names)
        with Server(EXAMPLES) as server:
            listed = json.loads(server.cli("models", "--json").stdout)["models"]
            self.assertEqual(sorted(model["name"] for model in listed), names)
            for model in listed:
                name, features = model["name"], model["feature_size"]
                with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
                    json.dump({"features": [[1.0] * features] * 5} if features else {"token_ids": [1, 2, 3, 4, 5]}, file)
                    file.flush()
                    answer = server.predict("--model", name, "--input", file.name, "--samples", "2")["predictions"][0]
                self.assertGreater(float(answer["edges"]["edges"]), 0, name)

    def test_a_text_with_other_characters_is_told_which_are_known(self):
        with Server(EXAMPLES) as server:
            run = server.cli("score", "--model", "shakespeare-ssa", "--file", os.path.join(ROOT, "README.md"))
        self.assertIn('character "#" at byte 0 is not in the vocabulary; it knows 65 characters: '
                      "\\n !$&',-.3:;?A-Za-z\n", run.stderr)

    def test_what_cannot_be_reached_is_two_lines(self):
        """The error and one hint; nothing of gRPC's own."""
        with Server(EXAMPLES) as server:
            run = server.cli("models", "--tls")
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"^edgewise: UNAVAILABLE: .*wrong version number\n"
                                     r"The server at 127.0.0.1:\d+ does not speak TLS: .*\n$")

    def test_descriptions_are_those_that_the_recipes_write(self):
        recipes = ""
        for name in sorted(os.listdir(os.path.join(ROOT, "tools", "train"))):
            if name.endswith(".py"):
                with open(os.path.join(ROOT, "tools", "train", name), encoding="utf-8") as file:
                    recipes += file.read()
        for name in sorted(os.listdir(EXAMPLES)):
            with open(os.path.join(EXAMPLES, name, "1", "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            if "model_type" in config:  # a Hugging Face folder, which describes nothing
                continue
            description = config["description"]
            self.assertIn(f'"{description}"', recipes)
            if name == "duplicates":
                self.assertIn("takes exactly 256 token ids, 1 to 256", description)


def complete(ids: list) -> dict:
    """Every pair of valid tokens, as a graph head."""
    valid = [i for i, token in enumerate(ids) if token != 0]
    offsets, keys = [0], []
    for token in ids:
        keys += valid if token != 0 else []
        offsets.append(len(keys))
    return {"row_offsets": offsets, "keys": keys}


if __name__ == "__main__":
    unittest.main()
