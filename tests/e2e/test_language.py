"""Language models from outside: generating, scoring, interrupting, metrics."""

import json
import math
import os
import re
import signal
import subprocess
import tempfile
import unittest

from edgewise_process import BIN, EXAMPLES, ROOT, TESTDATA, Server, series, total, wait_until

MODEL = "shakespeare-block"
PROMPT = "ROMEO:\nWhat light through yonder"


class LanguageTest(unittest.TestCase):
    def generate(self, server: Server, *arguments: str, status: int = 0) -> subprocess.CompletedProcess:
        result = server.cli("generate", *arguments)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return result

    def test_text_is_the_same_with_the_same_seed_and_ends_with_its_cost(self):
        arguments = ("--model", MODEL, "--prompt", PROMPT, "--max_new_tokens", "150", "--seed", "3")
        with Server(EXAMPLES) as server:
            first = self.generate(server, *arguments).stdout
            again = self.generate(server, *arguments).stdout
            messages = [json.loads(line) for line in self.generate(server, *arguments, "--json").stdout.splitlines()]
            metrics = server.metrics()
        text, line = first.rstrip("\n").rsplit("\n", 1)
        self.assertEqual(again.rstrip("\n").rsplit("\n", 1)[0], text)
        self.assertRegex(line, r"^150 tokens in [0-9.]+ s, [0-9.]+ tokens/s, density [0-9.]+ %, ended by length, seed 3$")
        self.assertEqual("".join(message["text"] for message in messages).rstrip("\n"), text.rstrip("\n"))
        self.assertEqual(len(messages), 150)
        self.assertEqual(messages[-1]["generated_tokens"], 150)
        self.assertEqual(messages[-1]["prompt_tokens"], len(PROMPT))
        self.assertEqual(total(metrics, "edgewise_generations_total", model=MODEL, code="OK"), 3)
        self.assertEqual(total(metrics, "edgewise_generated_tokens_total", model=MODEL), 450)
        edges = sum(float(message["edges"]["edges"]) for message in messages)
        self.assertEqual(total(metrics, "edgewise_attention_edges_total", model=MODEL), 3 * edges)

    def test_a_stop_string_ends_the_text_before_it(self):
        arguments = ("--model", MODEL, "--prompt", PROMPT, "--max_new_tokens", "300", "--seed", "5")
        with Server(EXAMPLES) as server:
            whole = self.generate(server, *arguments).stdout
            stopped = self.generate(server, *arguments, "--stop", " the", "--stop", "no such text").stdout
        self.assertIn("ended by stop", stopped)
        self.assertEqual(stopped.split("\n")[0], whole[:whole.index(" the")].split("\n")[0])

    def test_ctrl_c_cancels_the_generation(self):
        with Server(TESTDATA) as server:
            client = subprocess.Popen(
                [os.path.join(BIN, "edgewise"), "generate", "--server", server.address, "--model", "lm-ssa-local",
                 "--token_ids", "1,2,3", "--max_new_tokens", "4096", "--samples", "64"], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True)
            client.stdout.read(4)  # it has begun
            client.send_signal(signal.SIGINT)
            client.communicate(timeout=60)
            self.assertEqual(client.returncode, -signal.SIGINT)
            wait_until("the end", lambda: total(server.metrics(), "edgewise_generations_total", code="CANCELLED") == 1)
            self.assertEqual(total(server.metrics(), "edgewise_generations_running"), 0)

    def test_sigterm_ends_generations_with_unavailable(self):
        with Server(TESTDATA, "--drain_timeout=200ms") as server:
            client = subprocess.Popen(
                [os.path.join(BIN, "edgewise"), "generate", "--server", server.address, "--model", "lm-ssa-local",
                 "--token_ids", "1,2,3", "--max_new_tokens", "4096", "--samples", "128"], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True)
            client.stdout.read(4)
            self.assertEqual(server.stop(), 0)
            _, err = client.communicate(timeout=60)
            self.assertEqual(client.returncode, 1)
            self.assertIn("UNAVAILABLE", err)

    def test_score_is_the_likelihood_that_predict_gives(self):
        text = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 9
        with Server(EXAMPLES) as server, tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            score = json.loads(server.cli("score", "--model", MODEL, "--file", file.name, "--json").stdout)
            shown = server.cli("score", "--model", MODEL, "--file", file.name).stdout
            dense = json.loads(server.cli("score", "--model", MODEL, "--file", file.name, "--dense", "--json").stdout)
            pieces = json.loads(server.cli("score", "--model", MODEL, "--file", file.name, "--piece_bytes", "120",
                                           "--json").stdout)
            prediction = server.predict("--model", MODEL, "--text", text, "--top_k", "3")["predictions"][0]
        self.assertEqual(score["tokens"], len(text) - 1)
        self.assertEqual(score["requests"], 1)
        self.assertAlmostEqual(score["log_likelihood"], prediction["log_likelihood"], places=9)
        self.assertAlmostEqual(score["perplexity"], prediction["perplexity"], places=9)
        self.assertAlmostEqual(score["bits_per_byte"], score["loss"] * (len(text) - 1) / len(text) / math.log(2))
        self.assertLess(score["loss"], math.log(65))  # better than a guess
        self.assertIn(f"loss         {score['loss']:.4f} nats/token", shown)
        self.assertLess(score["density"], 0.6)
        self.assertEqual(dense["density"], 1.0)
        self.assertGreater(pieces["requests"], 1)
        self.assertEqual(pieces["tokens"], len(text) - pieces["requests"])
        self.assertEqual(len(prediction["top"]), 3)
        self.assertEqual(len(prediction["top"][0]["label"]), 1)  # a character

    def test_a_text_that_the_server_does_not_score_at_once_goes_in_pieces(self):
        text = "Before we proceed any further, hear me speak.\n" * 1600  # a stride of 127 makes 580 windows of 128
        with Server(EXAMPLES) as server, tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            arguments = ("--model", MODEL, "--stride", "127")
            whole = server.cli("score", *arguments, "--file", file.name, "--json")
            scored = server.cli("score", *arguments, "--file", file.name, "--max_density", "0.4", "--json")
            capped = server.cli("predict", *arguments, "--text", text, "--max_density", "0.4")
            refused = server.cli("predict", "--model", MODEL, "--text", text, "--stride", "1")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertEqual(json.loads(whole.stdout)["requests"], 1)
        self.assertIn("the windows of the text have 74240 positions; under a budget", capped.stderr)
        self.assertEqual(scored.returncode, 0, scored.stderr)
        self.assertIn("trying pieces of 36,800 bytes", scored.stderr)
        self.assertEqual(json.loads(scored.stdout)["requests"], 2)
        self.assertEqual(json.loads(scored.stdout)["tokens"], len(text) - 2)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("RESOURCE_EXHAUSTED", refused.stderr)
        self.assertIn("text has 73600 tokens, which makes 73473 windows of 128 positions, 1 apart; at most 1048576",
                      refused.stderr)

    def test_every_series_of_generation_exists_from_the_start(self):
        with Server(EXAMPLES) as server:
            before = server.metrics()
            self.generate(server, "--model", MODEL, "--prompt", PROMPT, "--max_new_tokens", "3", "--max_density",
                          "0.9")
            self.generate(server, "--model", MODEL, "--prompt", "A", "--max_new_tokens", "999999", status=1)
            after = server.metrics()
        names = set(re.findall(r"^(edgewise_[a-z_]+)", after, re.M))
        for name in sorted(names):
            self.assertEqual(set(series(before, name)), set(series(after, name)), name)
        self.assertEqual(total(after, "edgewise_generations_total", model=MODEL, code="INVALID_ARGUMENT"), 1)


class LlamaTest(unittest.TestCase):
    """The bundled Hugging Face folder: texts in and out of a byte-level tokenizer, against transformers."""

    MODEL = "shakespeare-llama"

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "tests", "testdata_shakespeare_llama.json"), encoding="utf-8") as file:
            cls.golden = json.load(file)
        cls.server = Server(EXAMPLES).__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def generate(self, *arguments: str) -> list:
        result = self.server.cli("generate", "--model", self.MODEL, *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_the_likelihoods_of_a_texts_tokens_are_those_of_transformers(self):
        for entry in self.golden["texts"]:
            ids = ",".join(map(str, entry["token_ids"]))
            expected = entry["token_log_likelihoods"]
            for source in (("--text", entry["text"]), ("--token_ids", ids)):
                answer = self.server.predict("--model", self.MODEL, *source, "--each_sample")["predictions"][0]
                got = [math.log(p) for p in answer["sample_outputs"][0]["token_probabilities"]]
                self.assertEqual(len(got), len(expected), entry["text"])
                for mine, other in zip(got, expected):
                    self.assertAlmostEqual(mine, other, delta=1e-4 * max(1.0, abs(other)))
            scored = self.server.cli("score", "--model", self.MODEL, "--text", entry["text"], "--json")
            score = json.loads(scored.stdout)
            self.assertAlmostEqual(score["log_likelihood"], sum(expected), delta=1e-4 * abs(sum(expected)))
            self.assertEqual((score["tokens"], score["density"]), (len(expected), 1.0))

    def test_greedy_texts_are_those_of_transformers(self):
        for entry in self.golden["generations"]:
            messages = self.generate("--prompt", entry["text"], "--max_new_tokens", str(entry["max_new_tokens"]),
                                     "--temperature", "0")
            sure = entry["sure"]
            self.assertGreaterEqual(sure, 20)
            self.assertEqual([message["token_id"] for message in messages][:sure], entry["new_token_ids"][:sure])
            if sure == len(entry["new_token_ids"]):
                self.assertEqual("".join(message["text"] for message in messages), entry["new_text"])

    def test_a_stream_has_whole_characters(self):
        """Nearly any token may come next: bytes of characters too, and bytes that are part of none."""
        with open(os.path.join(EXAMPLES, self.MODEL, "1", "tokenizer.json"), encoding="utf-8") as file:
            vocabulary = {id: token for token, id in json.load(file)["model"]["vocab"].items()}
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are their own characters there
        byte_of = {chr(byte): byte for byte in kept}
        byte_of.update({chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(kept)))})
        messages = self.generate("--prompt", "🌹", "--max_new_tokens", "2000", "--overflow", "halve", "--temperature",
                                 "1000", "--seed", "1")
        written = b"".join(bytes(map(byte_of.get, vocabulary[message["token_id"]])) for message in messages)
        text = written.decode("utf-8", "replace")
        self.assertEqual("".join(message["text"] for message in messages), text)
        self.assertTrue(any(not character.isascii() and character != "\ufffd" for character in text),
                        "no character of several tokens was written")

    def test_attention_that_it_was_not_trained_with(self):
        text = self.golden["texts"][0]["text"] * 8
        flags = ("--model", self.MODEL, "--text", text, "--seed", "2", "--json")
        dense, blocks, windows, again = (
            json.loads(self.server.cli("score", *flags, *override).stdout) for override in (
                (), ("--block_pattern=local", "--block_size=16"), ("--window_tokens=32", "--sigma=8"),
                ("--window_tokens=32", "--sigma=8")))
        self.assertEqual(dense["density"], 1.0)
        for sparse in (blocks, windows):
            self.assertLess(sparse["density"], 0.7)
            self.assertLess(sparse["loss"], math.log(1024))  # better than a guess
        self.assertEqual(windows["log_likelihood"], again["log_likelihood"])


if __name__ == "__main__":
    unittest.main()
