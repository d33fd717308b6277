"""`edgewise evaluate` on real models: its measures are those of the definitions over what `edgewise predict` answers, and
a row becomes a profile that the server follows."""

import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import unittest

import numpy as np

from edgewise_process import EXAMPLES, ROOT, TESTDATA, Server, wait_until

sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
import make_metrics  # noqa: E402

FOLDERS = TESTDATA + "_hugging_face"
SENTIMENT = os.path.join(ROOT, "examples", "data", "sentiment.jsonl")


def evaluate(server: Server, *arguments: str) -> list:
    result = server.cli("evaluate", "--json", *arguments)
    if result.returncode != 0:
        raise AssertionError(f"evaluate {arguments}: {result.stderr}")
    return json.loads(result.stdout)["settings"]


def predictions(server: Server, *arguments: str) -> list:
    result = server.cli("predict", "--json", *arguments)
    if result.returncode != 0:
        raise AssertionError(f"predict {arguments}: {result.stderr}")
    return [json.loads(line)["predictions"][0] for line in result.stdout.splitlines()]


class EvaluateTest(unittest.TestCase):
    def compare(self, measures: dict, expected: dict) -> None:
        self.assertEqual(set(measures), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(measures[name], value, places=6, msg=name)

    def test_a_classifier_has_the_measures_of_its_answers(self):
        with open(SENTIMENT, encoding="utf-8") as file:
            labels = np.array([json.loads(line)["label"] for line in file])
        with Server(EXAMPLES) as server:
            row = evaluate(server, "--model=sentiment", f"--data={SENTIMENT}", "--caps=3%", "--samples=4")[2]
            answers = predictions(server, "--model=sentiment", "--input", SENTIMENT, "--max_density=0.03", "--samples=4",
                                  "--seed=1")
        self.assertEqual((row["setting"], row["samples"], row["refused"]), ("cap 3 %", 4, 0))
        given = np.array([answer["label_id"] for answer in answers])
        right = given == labels
        self.assertTrue(0 < right.sum() < len(right), "the data shall have right and wrong answers")
        self.compare(row["measures"], {
            "accuracy": right.mean(),
            "macro_f1": make_metrics.macro_f1(labels, given),
            "calibration_error": make_metrics.calibration_error(
                np.array([answer["probabilities"][answer["label_id"]] for answer in answers]), right),
            "auroc_entropy": make_metrics.auroc(np.array([answer["predictive_entropy"] for answer in answers]), ~right),
            "auroc_mutual_information": make_metrics.auroc(
                np.array([answer["mutual_information"] for answer in answers]), ~right),
        })

    def test_several_labels_have_the_measures_of_their_answers(self):
        draw = random.Random(2)
        names = ["toxic", "insult", "threat", "obscene"]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file, Server(FOLDERS) as server:
            server.wait_until_ready()
            labels = np.array([[draw.random() < share for share in (0.2, 0.4, 0.8, 0.6)] for _ in range(24)])
            for row in labels:
                ids = [draw.randrange(6, 40) for _ in range(12)]
                held = [names[c] if draw.random() < 0.5 else int(c) for c in np.flatnonzero(row)]
                file.write(json.dumps({"token_ids": ids, "labels": held}) + "\n")
            file.flush()
            way = ["--windows=3", "--sigma=0.3", "--samples=4"]
            row = evaluate(server, "--model=bert_multi_label", f"--data={file.name}", *way)[1]
            answers = predictions(server, "--model=bert_multi_label", "--input", file.name, "--seed=1", *way)
            shown = server.cli("predict", "--model=bert_multi_label", "--input", file.name, "--seed=1", *way).stdout
        probabilities = np.array([answer["probabilities"] for answer in answers])
        given = probabilities > 0.5
        right = (given == labels).all(axis=1)
        self.assertTrue(0 < right.sum() < len(right), "the data shall have right and wrong answers")
        self.compare(row["measures"], {
            "accuracy": right.mean(),
            "macro_f1": make_metrics.multi_label_macro_f1(labels, given),
            "calibration_error": make_metrics.calibration_error(
                np.maximum(probabilities, 1 - probabilities).ravel(), (given == labels).ravel()),
            "auroc_entropy": make_metrics.auroc(np.array([answer["predictive_entropy"] for answer in answers]), ~right),
            "auroc_mutual_information": make_metrics.auroc(
                np.array([answer["mutual_information"] for answer in answers]), ~right),
        })
        lines = shown.splitlines()[1:25]
        for line, answer, is_right in zip(lines, given, right, strict=True):
            self.assertIn(", ".join(np.array(names)[answer]) or "none", line)
            self.assertEqual(line.endswith("  right"), bool(is_right), line)
        self.assertIn(f"accuracy     {100 * right.mean():.2f} % ({right.sum()} of 24)", shown)

    def test_an_encoder_is_ranked_by_its_cosines_under_each_override(self):
        draw = random.Random(1)
        texts = [[draw.randrange(5, 40) for _ in range(12)] for _ in range(20)]
        values = [draw.random() for _ in range(10)]
        with tempfile.TemporaryDirectory() as folder, Server(FOLDERS) as server:
            server.wait_until_ready()
            pairs, singles = os.path.join(folder, "pairs.jsonl"), os.path.join(folder, "singles.jsonl")
            with open(pairs, "w", encoding="utf-8") as file:
                for first, second, value in zip(texts[::2], texts[1::2], values):
                    file.write(json.dumps({"token_ids": first, "second_token_ids": second, "value": value}) + "\n")
            with open(singles, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"token_ids": text}) + "\n" for text in texts)
            rows = evaluate(server, "--model=mpnet_sentence", f"--data={pairs}", "--window_tokens=4,8", "--sigma=2",
                            "--caps=50%")
            ways = {"dense": ["--dense"],
                    "window_tokens 4": ["--window_tokens=4", "--sigma=2"],
                    "window_tokens 4, cap 50 %": ["--window_tokens=4", "--sigma=2", "--max_density=0.5"],
                    "window_tokens 8": ["--window_tokens=8", "--sigma=2"],
                    "window_tokens 8, cap 50 %": ["--window_tokens=8", "--sigma=2", "--max_density=0.5"]}
            self.assertEqual([row["setting"] for row in rows], list(ways))
            for row in rows:
                answers = predictions(server, "--model=mpnet_sentence", "--input", singles, "--seed=1",
                                      *ways[row["setting"]])
                vectors = np.array([answer["embedding"] for answer in answers])
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                cosines = (vectors[::2] * vectors[1::2]).sum(axis=1)
                self.compare(row["measures"],
                             {"rank_correlation": make_metrics.rank_correlation(cosines, np.array(values))})
                edges = [float(answer["edges"]["edges"]) for answer in answers]
                self.assertAlmostEqual(row["edges"], 2 * np.mean(edges), places=6)

    def test_a_language_model_has_its_perplexity(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file, Server(EXAMPLES) as server:
            texts = ["Shall I compare thee to a summer's day?", "Thou art more lovely and more temperate."]
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
            file.flush()
            row = evaluate(server, "--model=shakespeare-ssa", f"--data={file.name}")[0]
            answers = predictions(server, "--model=shakespeare-ssa", "--input", file.name, "--dense")
        loss = -sum(a["log_likelihood"] for a in answers) / sum(a["scored_tokens"] for a in answers)
        self.compare(row["measures"], {"loss": loss, "perplexity": math.exp(loss)})

    def test_a_row_has_a_profile_that_the_server_follows(self):
        with tempfile.TemporaryDirectory() as repository:
            for name, source in (("long", EXAMPLES), ("encoder", os.path.join(FOLDERS, "mpnet_sentence", ".."))):
                source = os.path.join(source, "mpnet_sentence" if name == "encoder" else name, "1")
                shutil.copytree(source, os.path.join(repository, name, "1"))
            with Server(repository) as server:
                server.wait_until_ready()
                self.save(server, repository, "long", {"text": "moscow=green <unk> which moscow?"},
                          ["--caps=20%", "--samples=2"], 2, ["--max_density=0.2", "--samples=2"])
                self.save(server, repository, "encoder", {"token_ids": list(range(5, 25))},
                          ["--block_size=4", "--block_pattern=local"], 1, ["--block_size=4", "--block_pattern=local"])

    def save(self, server: Server, repository: str, model: str, line: dict, sweep: list, row: int, same: list) -> None:
        """`same`: the flags that ask for what the row does."""
        data = os.path.join(repository, f"{model}.jsonl")
        with open(data, "w", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        path = os.path.join(repository, model, "1", "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["profiles"] = {"quick": evaluate(server, f"--model={model}", f"--data={data}", *sweep)[row]["profile"]}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        server.process.send_signal(signal.SIGHUP)
        arguments = ("--model", model, "--input", data, "--seed=1")
        wait_until("the profile", lambda: server.cli("predict", *arguments, "--profile=quick").returncode == 0)
        self.assertEqual(predictions(server, *arguments, "--profile=quick"), predictions(server, *arguments, *same))


if __name__ == "__main__":
    unittest.main()
