"""The package `langchain-openai`, as it comes from PyPI, against a server: chat, stream, completion and embeddings. Needs a
Python with it; the server's binaries are found as in tests/e2e."""

import os
import sys
import unittest

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import TESTDATA, Server  # noqa: E402

CHAT_MODEL, EMBEDDING_MODEL = "gpt2_untied", "old_last_token"


class LangChainTest(unittest.TestCase):
    def test_language_models(self):
        with Server(TESTDATA + "_hugging_face", "--http_listen=127.0.0.1:0") as server:
            options = {"base_url": f"http://{server.http_address}/v1", "api_key": "none", "model": CHAT_MODEL,
                       "max_tokens": 6, "max_retries": 0}
            chat = ChatOpenAI(seed=7, **options)
            answer = chat.invoke("hello")
            self.assertEqual("".join(part.content for part in chat.stream("hello")), answer.content)
            self.assertEqual(answer.usage_metadata["output_tokens"], 6)
            self.assertTrue(OpenAI(seed=7, **options).invoke("hello"))

    def test_embeddings(self):
        with Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0") as server:
            embeddings = OpenAIEmbeddings(base_url=f"http://{server.http_address}/v1", api_key="none",
                                          model=EMBEDDING_MODEL, check_embedding_ctx_length=False)
            texts = embeddings.embed_documents(["hello", "a b"])
            self.assertEqual(len(texts), 2)
            self.assertEqual(embeddings.embed_query("hello"), texts[0])


if __name__ == "__main__":
    unittest.main()
