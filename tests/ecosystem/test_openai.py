"""The package `openai`, as it comes from PyPI, against a server: the same answers as over gRPC, and errors as its own
classes. Needs a Python with `openai`; the server's binaries are found as in tests/e2e."""

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import unittest

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import EXAMPLES, HANG, TESTDATA, Server, series, wait_until  # noqa: E402

CHAT_MODEL, EMBEDDING_MODEL, LONG_MODEL = "gpt2_untied", "old_last_token", "shakespeare-ssa"
MESSAGES = [{"role": "user", "content": "hello"}]


def client_of(server: Server, key: str = "none", **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key=key, timeout=HANG, max_retries=0,
                         **options)


class LanguageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESTDATA + "_hugging_face", "--http_listen=127.0.0.1:0", "--model",
                            f"{LONG_MODEL}={EXAMPLES}/{LONG_MODEL}/1").__enter__()
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def generated(self, *arguments: str) -> str:
        run = self.server.cli("generate", f"--model={CHAT_MODEL}", "--max_new_tokens=12", "--seed=7",
                              "--temperature=1", "--json", *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return "".join(json.loads(line).get("text", "") for line in run.stdout.splitlines())

    def test_models_are_listed(self):
        ids = [model.id for model in self.client.models.list()]
        self.assertIn(CHAT_MODEL, ids)
        self.assertEqual(self.client.models.retrieve(CHAT_MODEL).id, CHAT_MODEL)

    def test_a_completion_is_the_text_that_generate_writes(self):
        text = self.generated("--prompt=hello")
        answer = self.client.completions.create(model=CHAT_MODEL, prompt="hello", max_tokens=12, seed=7)
        self.assertEqual(answer.choices[0].text, text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        stream = self.client.completions.create(model=CHAT_MODEL, prompt="hello", max_tokens=12, seed=7, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream), text)

    def test_a_chat_streams_the_text_of_the_whole_answer(self):
        ask = {"model": CHAT_MODEL, "messages": MESSAGES, "max_completion_tokens": 12, "seed": 7}
        whole = self.client.chat.completions.create(**ask)
        stream = self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(text, self.generated("--chat=hello"))
        self.assertEqual(usage, whole.usage)
        # The answer goes back as it came.
        short = self.client.chat.completions.create(model=CHAT_MODEL, messages=MESSAGES, max_tokens=1)
        again = self.client.chat.completions.create(
            model=CHAT_MODEL, messages=[MESSAGES[0], short.choices[0].message], max_tokens=1)
        self.assertEqual(again.choices[0].message.role, "assistant")

    def test_many_chats_at_once_have_the_texts_that_each_has_alone(self):
        def ask(seed: int) -> dict:
            return {"model": CHAT_MODEL, "messages": MESSAGES, "max_tokens": 8, "seed": seed}

        async def all_at_once() -> list:
            async with openai.AsyncOpenAI(base_url=self.client.base_url, api_key="none", timeout=HANG) as client:
                return await asyncio.gather(*(client.chat.completions.create(**ask(seed)) for seed in range(16)))

        texts = [answer.choices[0].message.content for answer in asyncio.run(all_at_once())]
        alone = [self.client.chat.completions.create(**ask(seed)).choices[0].message.content for seed in range(16)]
        self.assertEqual(texts, alone)
        self.assertGreater(len(set(texts)), 1)

    def test_budgets_come_in_extra_body_and_edges_in_the_answer(self):
        answer = self.client.chat.completions.create(
            model=CHAT_MODEL, messages=MESSAGES, max_tokens=4, extra_body={"edgewise": {"samples": 2, "seed": 3}})
        report = answer.choices[0].edgewise
        self.assertEqual(report["seed"], 3)
        self.assertGreater(report["edges"], 0)

    def test_log_probabilities_come_of_what_is_written_and_of_a_prompt(self):
        chat = self.client.chat.completions.create(model=CHAT_MODEL, messages=MESSAGES, max_tokens=3, seed=7,
                                                   logprobs=True, top_logprobs=2)
        for token in chat.choices[0].logprobs.content:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertLess(token.logprob, 0)
        # As lm-evaluation-harness asks.
        echo = self.client.completions.create(model=CHAT_MODEL, prompt=[[5, 9, 2]], max_tokens=1, temperature=0,
                                              echo=True, logprobs=1)
        scores = echo.choices[0].logprobs
        self.assertEqual(len(scores.tokens), 4)
        self.assertIsNone(scores.token_logprobs[0])
        for logprob, top in zip(scores.token_logprobs[1:], scores.top_logprobs[1:]):
            self.assertGreaterEqual(max(top.values()), logprob)

    def test_errors_are_those_of_the_package(self):
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.client.chat.completions.create(model="nothing", messages=MESSAGES)
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.client.chat.completions.create(model=CHAT_MODEL, messages=MESSAGES, logit_bias={"5": 1})
        self.assertEqual(wrong.exception.param, "logit_bias")
        with self.assertRaises(openai.NotFoundError) as responses:
            self.client.responses.create(model=CHAT_MODEL, input="hello")
        self.assertIn("/v1/chat/completions", responses.exception.message)

    def test_a_client_that_goes_cancels_its_generation(self):
        def cancelled() -> float:
            return sum(value for pairs, value in series(self.server.metrics(), "edgewise_generations_total").items()
                       if ("code", '"CANCELLED"') in pairs)

        # Seconds of work, so that it cannot end before the client goes.
        stream = self.client.completions.create(model=LONG_MODEL, prompt="ROMEO:", stream=True, n=4,
                                                extra_body={"edgewise": {"samples": 256}})
        next(iter(stream))
        stream.close()
        wait_until("a cancelled generation", lambda: cancelled() > 0)


class EmbeddingsTest(unittest.TestCase):
    def test_embeddings_are_those_of_predict(self):
        with Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0") as server:
            expected = server.predict(f"--model={EMBEDDING_MODEL}", "--text=hello")["predictions"][0]["embedding"]
            client = client_of(server)
            # Without a format the package asks for base64, and unpacks it.
            for options in ({}, {"encoding_format": "float"}):
                answer = client.embeddings.create(model=EMBEDDING_MODEL, input=["hello", "a b"], **options)
                self.assertEqual(len(answer.data), 2)
                for found, number in zip(answer.data[0].embedding, expected):
                    self.assertAlmostEqual(found, number, delta=1e-6 * max(1.0, abs(number)))
            self.assertEqual(len(client.embeddings.create(model=EMBEDDING_MODEL, input="hello", dimensions=4)
                                 .data[0].embedding), 4)

    def test_edges_stay_within_the_budget_of_extra_body(self):
        with Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0") as server:
            for budget in (120, 130, 160):
                answer = client_of(server).embeddings.create(
                    model=EMBEDDING_MODEL, input=["hello a b", "the cat sat on the mat"], extra_body={"edgewise": {
                        "max_edges": budget, "samples": 4, "seed": 3,
                        "override": {"kind": "ssa", "windows": 2, "sigma": [0.4]}}})
                for embedding in answer.data:
                    self.assertGreater(embedding.edgewise["edges"], 0)
                    self.assertLessEqual(embedding.edgewise["edges"], budget)
                    self.assertEqual(embedding.edgewise["budget"], budget)


class LimitsTest(unittest.TestCase):
    def test_the_token_is_the_api_key(self):
        with tempfile.TemporaryDirectory() as folder:
            tokens = os.path.join(folder, "tokens")
            with open(tokens, "w", encoding="utf-8") as file:
                file.write("0123456789abcdef\n")
            server = Server(TESTDATA, "--http_listen=127.0.0.1:0", f"--auth_token_file={tokens}")
            self.addCleanup(server.stop)
            wait_until("the server", lambda: client_of(server, "0123456789abcdef").models.list().data)
            with self.assertRaises(openai.AuthenticationError):
                client_of(server, "0123456789abcdeX").models.list()

    def test_overload_is_a_rate_limit_that_says_when_to_come_again(self):
        with Server(TESTDATA, "--http_listen=127.0.0.1:0", "--max_queue_requests=1", "--max_generations=1") as server:
            client = client_of(server)
            ask = {"model": "lm-ssa-local", "prompt": [3, 1, 4], "max_tokens": 40,
                   "extra_body": {"edgewise": {"samples": 256}}}
            limited = threading.Event()

            def call() -> None:
                end = time.monotonic() + HANG
                while not limited.is_set() and time.monotonic() < end:
                    try:
                        client.completions.create(**ask)
                    except openai.RateLimitError as error:
                        if int(error.response.headers["retry-after"]) >= 1:
                            limited.set()

            callers = [threading.Thread(target=call) for _ in range(8)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            self.assertTrue(limited.is_set())


if __name__ == "__main__":
    unittest.main()
