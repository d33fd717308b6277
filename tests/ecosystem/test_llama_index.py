"""The packages `llama-index-llms-openai-like` and `llama-index-embeddings-openai-like`, as they come from PyPI, against a
server. Needs a Python with them; the server's binaries are found as in tests/e2e."""

import os
import sys
import unittest

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import HANG, TESTDATA, Server  # noqa: E402

CHAT_MODEL, EMBEDDING_MODEL = "gpt2_untied", "old_last_token"


class LlamaIndexTest(unittest.TestCase):
    def test_language_models(self):
        with Server(TESTDATA + "_hugging_face", "--http_listen=127.0.0.1:0") as server:
            def model(chat: bool) -> OpenAILike:
                return OpenAILike(model=CHAT_MODEL, api_base=f"http://{server.http_address}/v1", api_key="none",
                                  is_chat_model=chat, max_tokens=6, temperature=1.0, max_retries=0, timeout=HANG,
                                  additional_kwargs={"seed": 7})

            run = server.cli("generate", f"--model={CHAT_MODEL}", "--max_new_tokens=6", "--seed=7", "--temperature=1",
                             "--prompt=hello")
            text = model(False).complete("hello").text
            self.assertEqual(text, run.stdout.split("\n")[0], run.stderr)
            self.assertEqual("".join(part.delta for part in model(False).stream_complete("hello")), text)
            messages = [ChatMessage(role="system", content="a"), ChatMessage(role="user", content="hello")]
            answer = model(True).chat(messages)
            self.assertTrue(answer.message.content)
            self.assertEqual("".join(part.delta for part in model(True).stream_chat(messages)), answer.message.content)

    def test_embeddings(self):
        with Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0") as server:
            embeddings = OpenAILikeEmbedding(model_name=EMBEDDING_MODEL, api_base=f"http://{server.http_address}/v1",
                                             api_key="none", max_retries=0, timeout=HANG)
            texts = embeddings.get_text_embedding_batch(["hello", "a b"])
            expected = server.predict(f"--model={EMBEDDING_MODEL}", "--text=hello")["predictions"][0]["embedding"]
            self.assertEqual(len(texts), 2)
            for found, number in zip(texts[0], expected):
                self.assertAlmostEqual(found, number, delta=1e-6 * max(1.0, abs(number)))
            self.assertEqual(embeddings.get_query_embedding("hello"), texts[0])


if __name__ == "__main__":
    unittest.main()
