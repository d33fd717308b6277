"""Every route of HTTP answers from the bundled models, with the numbers of the packages whose folders these are."""

import json
import os
import unittest

from edgewise_process import EXAMPLES, ROOT, Server
from test_http import HTTP, ask

LIKES, DISLIKES = "a tender and charming story", "a dull and lifeless mess"


def golden(name: str) -> dict:
    with open(os.path.join(ROOT, "tests", f"testdata_{name}.json"), encoding="utf-8") as file:
        return json.load(file)


class RoutesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(EXAMPLES, HTTP, "--ready=all").__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        cls.server.wait_until_ready()
        cls.reviews = golden("reviews")

    def ask(self, path: str, body=None):
        code, answer = ask(self.server, path, body)
        self.assertEqual(code, 200, answer)
        return json.loads(answer)

    def assert_close(self, got: list, expected: list) -> None:
        self.assertEqual(len(got), len(expected))
        for mine, other in zip(got, expected):
            self.assertAlmostEqual(mine, other, delta=1e-5)

    def test_embeddings_are_those_of_sentence_transformers(self):
        texts, expected = self.reviews["texts"], self.reviews["embeddings"]
        openai = self.ask("/v1/embeddings", {"model": "review-encoder", "input": texts})["data"]
        for got in ([one["embedding"] for one in openai], self.ask("/embed", {"inputs": texts}),
                    self.ask("/", {"model": "review-encoder", "inputs": texts}),
                    self.ask("/models/review-encoder/embed", {"inputs": texts})):
            for mine, other in zip(got, expected, strict=True):
                self.assert_close(mine, other)

    def test_similarities_follow_opinions(self):
        inputs = {"source_sentence": self.reviews["query"], "sentences": [DISLIKES, LIKES]}
        disliked, liked = self.ask("/similarity", {"inputs": inputs})
        self.assertGreater(liked, disliked + 0.2)

    def test_scores_are_those_of_sentence_transformers(self):
        query, texts, expected = (self.reviews[name] for name in ("query", "texts", "scores"))
        cohere = {"model": "review-ranker", "query": query, "documents": texts}
        ranks = [(rank["index"], rank["score"]) for rank in self.ask("/rerank", {"query": query, "texts": texts})]
        for path in ("/v1/rerank", "/v2/rerank"):
            results = self.ask(path, cohere)["results"]
            self.assertEqual([(rank["index"], rank["relevance_score"]) for rank in results], ranks)
        self.assertEqual(ranks, sorted(ranks, key=lambda rank: -rank[1]))
        self.assert_close([score for _, score in sorted(ranks)], expected)
        pairs = self.ask("/predict", {"model": "review-ranker", "inputs": [[query, text] for text in texts]})
        self.assert_close([one["score"] for one, in pairs], expected)

    def test_ranks_follow_opinions_and_budgets_hold(self):
        body = {"model": "review-ranker", "query": self.reviews["query"], "documents": [DISLIKES, LIKES]}
        liked, disliked = self.ask("/v2/rerank", body)["results"]
        self.assertEqual((liked["index"], disliked["index"]), (1, 0))
        self.assertGreater(liked["relevance_score"], disliked["relevance_score"] + 0.5)
        options = {"max_edges": 700, "seed": 1, "samples": 4, "override": {"kind": "ssa", "keep": 12}}
        for rank in self.ask("/v2/rerank", {**body, "edgewise": options})["results"]:
            self.assertLessEqual(rank["edgewise"]["edges"], 700)
            self.assertTrue(rank["edgewise"]["capped"])

    def test_labels(self):
        best = self.ask("/predict", {"model": "sentiment", "inputs": "a warm film"})[0]
        self.assertEqual(best["label"], "positive")

    def test_tokens_become_text_again(self):
        tokens = self.ask("/tokenize", {"model": "review-encoder", "inputs": "a warm film"})[0]
        self.assertEqual([token["text"] for token in tokens], ["[CLS]", "a", "warm", "film", "[SEP]"])
        ids = [token["id"] for token in tokens]
        self.assertEqual(self.ask("/decode", {"model": "review-encoder", "ids": ids}), ["a warm film"])
        self.assertEqual(self.ask("/models/review-ranker/info")["model_type"], {"reranker": {
            "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}})

    def test_a_chat_goes_on_from_the_prompt_that_transformers_makes(self):
        options = {"model": "shakespeare-llama", "seed": 3, "max_tokens": 40, "stop": "\n\n"}
        for entry in golden("shakespeare_llama")["chats"]:
            chat = self.ask("/v1/chat/completions", {**options, "messages": entry["messages"],
                                                     "chat_template_kwargs": entry["template_arguments"]})
            text = self.ask("/v1/completions", {**options, "prompt": entry["prompt"]})["choices"][0]
            self.assertEqual(chat["choices"][0]["message"]["content"], text["text"])
            self.assertTrue(text["text"])
        first = golden("shakespeare_llama")["chats"][0]["messages"][0]["content"]
        written = self.server.cli("generate", "--model=shakespeare-llama", f"--chat={first}", "--seed=3", "--json",
                                  "--max_new_tokens=40", "--temperature=1").stdout.splitlines()
        whole = self.ask("/v1/chat/completions", {"model": "shakespeare-llama", "seed": 3, "max_tokens": 40,
                                                  "messages": [{"role": "user", "content": first}]})
        self.assertEqual("".join(json.loads(line).get("text", "") for line in written),
                         whole["choices"][0]["message"]["content"])

    def test_every_model_is_listed(self):
        listed = [model["id"] for model in self.ask("/v1/models")["data"]]
        self.assertEqual(sorted(listed), sorted(os.listdir(EXAMPLES)))


if __name__ == "__main__":
    unittest.main()
