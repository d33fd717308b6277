"""The package `cohere`, as it comes from PyPI, against a server: rerank of both versions, with the numbers of Predict, and
errors as its own classes. Needs a Python with `cohere`; the server's binaries are found as in tests/e2e."""

import os
import sys
import tempfile
import unittest

import cohere

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import HANG, TESTDATA, Server, wait_until  # noqa: E402

MODEL = "cross_encoder"
QUERY, DOCUMENTS = "is the dog good", ["the dog is old!", "a cat", "the red house"]


def client_of(server: Server, key: str = "none") -> cohere.ClientV2:
    return cohere.ClientV2(base_url=f"http://{server.http_address}", api_key=key, timeout=HANG)


class RerankTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0").__enter__()
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_scores_fall_and_are_those_of_predict(self):
        ranks = self.client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS).results
        self.assertEqual(sorted(rank.index for rank in ranks), [0, 1, 2])
        self.assertEqual([rank.relevance_score for rank in ranks],
                         sorted((rank.relevance_score for rank in ranks), reverse=True))
        for rank in ranks:
            answer = self.server.predict(f"--model={MODEL}", f"--text={QUERY}", f"--second_text={DOCUMENTS[rank.index]}")
            self.assertAlmostEqual(rank.relevance_score, answer["predictions"][0]["values"][0], delta=1e-6)
        best = self.client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=1).results
        self.assertEqual([rank.index for rank in best], [ranks[0].index])

    def test_the_first_version_gives_documents_back(self):
        old = cohere.Client(base_url=f"http://{self.server.http_address}", api_key="none", timeout=HANG)
        answer = old.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, return_documents=True)
        for rank in answer.results:
            self.assertEqual(rank.document.text, DOCUMENTS[rank.index])

    def test_budgets_come_in_additional_parameters_and_edges_in_the_answer(self):
        subsampled = {"kind": "ssa", "windows": 2, "sigma": [0.4]}
        answer = self.client.rerank(
            model=MODEL, query=QUERY, documents=DOCUMENTS,
            request_options={"additional_body_parameters": {
                "edgewise": {"max_edges": 150, "seed": 3, "override": subsampled}}})
        for rank in answer.results:
            self.assertLessEqual(rank.edgewise["edges"], 150)
            self.assertGreater(rank.edgewise["edges"], 0)

    def test_errors_are_those_of_the_package(self):
        with self.assertRaises(cohere.NotFoundError) as unknown:
            self.client.rerank(model="nothing", query=QUERY, documents=DOCUMENTS)
        self.assertIn("nothing", unknown.exception.body["message"])
        with self.assertRaises(cohere.BadRequestError) as wrong:
            self.client.rerank(model="mean", query=QUERY, documents=DOCUMENTS)
        self.assertIn("reranks", wrong.exception.body["message"])

    def test_the_token_is_the_api_key(self):
        with tempfile.TemporaryDirectory() as folder:
            tokens = os.path.join(folder, "tokens")
            with open(tokens, "w", encoding="utf-8") as file:
                file.write("0123456789abcdef\n")
            server = Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0", f"--auth_token_file={tokens}")
            self.addCleanup(server.stop)
            ask = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
            wait_until("the server", lambda: client_of(server, "0123456789abcdef").rerank(**ask).results)
            with self.assertRaises(cohere.UnauthorizedError):
                client_of(server, "0123456789abcdeX").rerank(**ask)


if __name__ == "__main__":
    unittest.main()
