"""Hugging Face folders through the programs and the Python client: nothing but the folder is needed."""

import json
import math
import os
import shutil
import tempfile
import unittest

import numpy as np

from edgewise_process import TESTDATA, Server
from python_client import edgewise

FOLDERS = TESTDATA + "_hugging_face"


def golden(model: str, part: str = "inputs") -> list:
    with open(os.path.join(FOLDERS, model, "golden.json"), encoding="utf-8") as file:
        return json.load(file)[part]


TRUNCATE = {"REFUSE": None, "HEAD": "head", "TAIL": "tail"}


class HuggingFaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(FOLDERS).__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        cls.server.wait_until_ready()
        cls.client = edgewise.Client(cls.server.address, timeout=60).__enter__()
        cls.addClassCleanup(cls.client.__exit__, None, None, None)

    def test_the_clients_answers_are_those_of_transformers(self):
        for model in ("mpnet_sentence", "bert_sentence_cls", "bert_model"):
            for entry in golden(model):
                if "token_types" in entry:
                    continue
                answer = self.client.predict(model, entry["token_ids"])
                largest = max(map(abs, entry["embedding"]))
                for got, expected in zip(answer.embedding, entry["embedding"], strict=True):
                    self.assertAlmostEqual(got, expected, delta=1e-4 * max(1.0, largest))
                self.assertEqual(answer.normalized, model == "mpnet_sentence")
        self.assertIn("embedding of 32", repr(answer))

    def test_a_cut_embedding_has_length_1(self):
        ids = golden("bert_model")[0]["token_ids"]
        cut = self.client.predict("bert_model", ids, dimensions=6)
        self.assertEqual(len(cut.embedding), 6)
        self.assertAlmostEqual(math.hypot(*cut.embedding), 1.0, delta=1e-6)
        with self.assertRaisesRegex(edgewise.Error, "outputs.dimensions is 33"):
            self.client.predict("bert_model", ids, dimensions=33)

    def test_masks_say_where_they_stand(self):
        entry = golden("bert_masked")[0]
        answer = self.client.predict("bert_masked", entry["token_ids"], top_k=2)
        self.assertEqual([token.position for token in answer.tokens], [2, 6])
        self.assertEqual(self.client.model("bert_masked").mask_token_id, 5)
        for token, logits in zip(answer.tokens, entry["logits"]):
            best = logits.index(max(logits))
            self.assertEqual((token.label_id, token.top[0].label_id, len(token.top)), (best, best, 2))
        shown = self.server.cli("predict", "--model", "bert_masked", "--token_ids",
                                ",".join(map(str, entry["token_ids"])), "--top_k", "2").stdout
        self.assertRegex(shown, r"(?m)^ +2  \S+ \(label %d\) +0" % answer.tokens[0].label_id)
        self.assertRegex(shown, r"(?m)^ +6  \S+ \(label %d\) +0" % answer.tokens[1].label_id)

    def test_the_command_line_shows_embeddings(self):
        ids = ",".join(map(str, golden("mpnet_sentence")[0]["token_ids"]))
        answer = self.server.predict("--model", "mpnet_sentence", "--token_ids", ids, "--dimensions", "5")
        self.assertEqual(len(answer["predictions"][0]["embedding"]), 5)
        shown = self.server.cli("predict", "--model", "mpnet_sentence", "--token_ids", ids, "--samples=4", "--seed=1",
                                "--windows=3", "--sigma=0.3").stdout
        self.assertRegex(shown, r"embedding +32 numbers, of length 1: -?0\.")
        self.assertRegex(shown, r"deviation +\d+\.\d+ over samples")

    def test_a_text_needs_a_tokenizer(self):
        result = self.server.cli("predict", "--model", "bert_model", "--text", "hello")
        self.assertIn("this model has no tokenizer; send token_ids", result.stderr)
        self.assertEqual(self.client.model("bert_model").tokenizer, "none")
        self.assertEqual(self.client.model("bert_sequence").tokenizer, "hugging-face")

    def assert_close(self, got, expected, what):
        for number, wanted in zip(got, expected, strict=True):
            self.assertAlmostEqual(number, wanted, delta=1e-4 * max(1.0, abs(wanted)), msg=what)

    def test_texts_are_answered_as_by_transformers(self):
        """Its tokenizer, its template for one text and two, its truncation."""
        seen = set()
        for model in ("bert_sequence", "bert_regression", "roberta_sequence", "distilbert_sequence", "mpnet_sentence"):
            for entry in golden(model, "texts"):
                options = {} if "embedding" in entry or model == "bert_regression" else {"logits": True}
                answer = self.client.predict(model, entry["text"], second=entry.get("second"),
                                             truncate=TRUNCATE[entry["truncate"]], **options)
                got = answer.embedding or answer.values or answer.logits
                self.assert_close(got, entry.get("embedding") or entry["logits"], f"{model}: {entry['text']}")
                self.assertEqual(answer.truncated_tokens, entry["truncated"])
                length = len(entry["token_ids"])
                self.assertEqual(answer.pairs, 2 * 4 * length * length, "one sequence, of both texts")
                seen.add((model, "second" in entry, entry["truncate"]))
                if options:
                    self.assertEqual(answer.label, ("no", "maybe", "yes")[got.index(max(got))])
        self.assertEqual(len(seen), 4 * 6 + 3)

    def test_the_command_line_takes_texts(self):
        entry = next(entry for entry in golden("bert_regression", "texts") if "second" in entry)
        answer = self.server.predict("--model", "bert_regression", "--text", entry["text"], "--second_text",
                                     entry["second"])
        self.assert_close(answer["predictions"][0]["values"], entry["logits"], "a pair")
        entry = golden("mpnet_sentence", "texts")[0]
        answer = self.server.predict("--model", "mpnet_sentence", "--text", entry["text"])
        self.assert_close(answer["predictions"][0]["embedding"], entry["embedding"], "a sentence")
        shown = self.server.cli("predict", "--model", "bert_masked", "--text", "the [MASK] sat on the mat").stdout
        self.assertRegex(shown, r"(?m)^ +2  \S+ \(label \d+\) +0")

    def test_masks_in_a_text_are_filled_with_texts(self):
        for model in ("bert_masked", "roberta_masked", "bert_masked_untied", "distilbert_masked"):
            for entry in golden(model, "texts"):
                answer = self.client.predict(model, entry["text"], truncate=TRUNCATE[entry["truncate"]], top_k=2)
                self.assertEqual([token.label for token in answer.tokens], entry["labels"], model)
                self.assertEqual([token.top[0].label for token in answer.tokens], entry["labels"], model)
                vocabulary = self.client.model(model).labels
                self.assertEqual([vocabulary[token.label_id] for token in answer.tokens], entry["labels"], model)
                self.assertEqual([token.position for token in answer.tokens],
                                 [i for i, id in enumerate(entry["token_ids"]) if id == 5])

    def test_labels_of_tokens_have_their_bytes(self):
        for entry in golden("bert_tokens", "texts"):
            answer = self.client.predict("bert_tokens", entry["text"], truncate=TRUNCATE[entry["truncate"]])
            self.assertEqual([[token.begin, token.end] for token in answer.tokens], entry["offsets"])
            for token, logits in zip(answer.tokens, entry["logits"], strict=True):
                self.assertEqual(token.label, ("no", "maybe", "yes")[logits.index(max(logits))])

    def test_labels_that_do_not_exclude_each_other_have_a_sigmoid_each(self):
        names = ["toxic", "insult", "threat", "obscene"]
        for entry in golden("bert_multi_label", "texts"):
            answer = self.client.predict("bert_multi_label", entry["text"], second=entry.get("second"),
                                         truncate=TRUNCATE[entry["truncate"]])
            self.assert_close(answer.probabilities, entry["scores"], entry["text"])
            self.assertEqual(answer.label, names[entry["scores"].index(max(entry["scores"]))])
            self.assertTrue(answer.multi_label)
        self.assertTrue(self.client.model("bert_multi_label").multi_label)
        self.assertFalse(self.client.model("bert_sequence").multi_label)
        self.assertFalse(self.client.predict("bert_sequence", [7]).multi_label)
        entry = golden("distilbert_one_label")[0]
        answer = self.client.predict("distilbert_one_label", entry["token_ids"])
        self.assert_close(answer.probabilities, entry["scores"], "one label")
        entry = golden("bert_multi_label")[3]
        shown = self.server.cli("predict", "--model", "bert_multi_label", "--token_ids",
                                ",".join(map(str, entry["token_ids"]))).stdout
        self.assertRegex(shown, r"(?m)^prediction +threat \(label 2\) +0\.7178\n +obscene \(label 3\) +0\.5799\nuncert")

    def test_the_entropies_of_several_labels_are_sums(self):
        """By the definition, in float64, over what the samples say."""
        answer = self.client.predict("bert_multi_label", golden("bert_multi_label")[3]["token_ids"], seed=3, samples=8,
                                     override={"windows": 3, "sigma": [0.3]}, each_sample=True)
        samples = np.array([sample.probabilities for sample in answer.message.sample_outputs], dtype=np.float64)
        entropy = lambda p: -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(axis=-1)
        self.assertAlmostEqual(answer.entropy, entropy(samples.mean(axis=0)), delta=1e-12)
        self.assertAlmostEqual(answer.mutual_information, entropy(samples.mean(axis=0)) - entropy(samples).mean(),
                               delta=1e-12)
        self.assertGreater(answer.mutual_information, 1e-5)

    def test_a_chat_is_answered_as_by_transformers(self):
        for entry in golden("gpt2_untied", "chats"):
            with self.client.generate("gpt2_untied", messages=entry["messages"], max_new_tokens=8,
                                      temperature=0) as tokens:
                got = list(tokens)
            self.assertEqual([token.token_id for token in got], entry["new_token_ids"])
            self.assertEqual("".join(token.text for token in got), entry["new_text"])
            flags = {message["role"]: message["content"] for message in entry["messages"]}
            system = ["--system", flags["system"]] if "system" in flags else []
            shown = self.server.cli("generate", "--model", "gpt2_untied", "--chat", flags["user"], *system,
                                    "--max_new_tokens", "8", "--temperature", "0", "--json").stdout.splitlines()
            self.assertEqual([json.loads(line).get("token_id", 0) for line in shown], entry["new_token_ids"])
        self.assertTrue(self.client.model("gpt2_untied").takes_messages)
        with self.assertRaisesRegex(edgewise.Error, "messages make no prompt .*: no tools here"):
            list(self.client.generate("gpt2_untied", messages=[{"role": "tool", "content": "4"}]))


class ChatTest(unittest.TestCase):
    """Folders of the shapes and templates that people chat with."""

    def test_messages_are_answered_as_by_transformers(self):
        with Server(TESTDATA + "_chat") as server:
            server.wait_until_ready()
            with edgewise.Client(server.address, timeout=60) as client:
                with open(os.path.join(TESTDATA + "_chat", "qwen3", "golden.json"), encoding="utf-8") as file:
                    chats = json.load(file)["chats"]
                for chat in chats:
                    tokens = list(client.generate("qwen3", messages=chat["messages"], temperature=0,
                                                  max_new_tokens=chat["max_new_tokens"]))
                    self.assertEqual([token.token_id for token in tokens], chat["new_token_ids"])
                    self.assertEqual("".join(token.text for token in tokens), chat["new_text"])
                # Arguments of the template: an answer without thoughts.
                chat, quick = chats[0], {"thinks": False}
                prompt = chat["prompt"] + "<think>\n\n</think>\n\n"
                options = {"temperature": 0, "max_new_tokens": 6}
                expected = [token.token_id for token in client.generate("qwen3", prompt, **options)]
                self.assertNotEqual(expected, chat["new_token_ids"][:6])
                tokens = client.generate("qwen3", messages=chat["messages"], template_arguments=quick, **options)
                self.assertEqual([token.token_id for token in tokens], expected)
                shown = server.cli("generate", "--model", "qwen3", "--chat", chat["messages"][0]["content"],
                                   "--template_arguments", json.dumps(quick), "--max_new_tokens", "6", "--temperature", "0",
                                   "--json").stdout.splitlines()
                self.assertEqual([json.loads(line).get("token_id", 0) for line in shown], expected)
                with self.assertRaises(edgewise.Error) as caught:
                    list(client.generate("qwen3", messages=chat["messages"], template_arguments={"messages": []}))
                self.assertEqual(caught.exception.field, "template_arguments.messages")
                # Its template writes the day, which goldens cannot know here.
                self.assertTrue(client.model("llama3").takes_messages)
                self.assertEqual(len(list(client.generate("llama3", messages=chats[0]["messages"], temperature=0,
                                                          max_new_tokens=1))), 1)


class LogTest(unittest.TestCase):
    def log_of(self, repository: str) -> list:
        with Server(repository, "--ready=all") as server:
            server.wait_until_ready()
        lines = list(server.log)
        while (line := server._lines.get(timeout=60)) is not None:
            lines.append(line)
        return lines

    def test_a_chat_template_that_is_not_served_stops_no_load(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(os.path.join(FOLDERS, "gpt2_untied"), os.path.join(repository, "gpt2"))
            with open(os.path.join(repository, "gpt2", "1", "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write("{{ bos_token }}\n{% macro say() %}{% endmacro %}")
            reason = 'chat_template.jinja: line 2: the block "macro" is not served; served: if, for, set, generation'
            with Server(repository, "--ready=all") as server:
                server.wait_until_ready()
                with edgewise.Client(server.address, timeout=60) as client:
                    self.assertFalse(client.model("gpt2").takes_messages)
                    with self.assertRaises(edgewise.Error) as caught:
                        list(client.generate("gpt2", messages=[{"role": "user", "content": "a"}]))
                    self.assertEqual(caught.exception.field, "messages")
                    self.assertIn(reason, str(caught.exception))
                    self.assertEqual(len(list(client.generate("gpt2", "a", max_new_tokens=2))), 2)
            lines = [line for line in self.log_of(repository) if line["event"] == "chat template not served"]
            self.assertEqual([(line["model"], line["reason"]) for line in lines], [("gpt2", reason)])

    def test_a_tokenizer_that_is_not_read_is_one_line(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(os.path.join(FOLDERS, "gpt2_untied"), os.path.join(repository, "gpt2"))
            os.remove(os.path.join(repository, "gpt2", "1", "tokenizer.json"))
            for name in ("vocab.json", "merges.txt"):
                with open(os.path.join(repository, "gpt2", "1", name), "w", encoding="utf-8") as file:
                    file.write("{}")
            lines = [line for line in self.log_of(repository) if line["event"] == "tokenizer not read"]
            self.assertEqual([(line["level"], line["model"]) for line in lines], [("warning", "gpt2")])
            self.assertIn("it has vocab.json, merges.txt", lines[0]["reason"])
            self.assertIn("save_pretrained", lines[0]["reason"])

    def test_tensors_of_other_tasks_are_one_line(self):
        with tempfile.TemporaryDirectory() as repository:
            for model in ("bert_model", "bert_sequence"):
                shutil.copytree(os.path.join(FOLDERS, model), os.path.join(repository, model))
            skipped = [(line["model"], line["tensors"]) for line in self.log_of(repository)
                       if line["event"] == "tensors not read"]
            self.assertEqual(skipped, [("bert_model", "pooler.dense.bias, pooler.dense.weight")])


class RefusedTest(unittest.TestCase):
    def test_a_model_that_is_not_served_says_so_and_the_others_are_served(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(os.path.join(FOLDERS, "bert_model"), os.path.join(repository, "good"))
            os.makedirs(os.path.join(repository, "t5", "1"))
            with open(os.path.join(repository, "t5", "1", "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, file)
            with Server(repository) as server:
                models = server.cli("models").stdout
                self.assertRegex(models, r"good .*READY|good .*ready")
                failed = server.cli("predict", "--model", "t5", "--token_ids", "1").stderr
                self.assertIn('model_type is "t5"; served: bert, camembert, distilbert', failed)


if __name__ == "__main__":
    unittest.main()
