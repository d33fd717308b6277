"""The scripts of docs/migrating.md as they stand, against a server on other ports. Needs a Python with `openai` and
`tritonclient`; the server's binaries are found as in tests/e2e."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import EXAMPLES, HANG, ROOT, Server  # noqa: E402

MODELS = ("shakespeare-llama", "review-encoder", "review-ranker", "sentiment")


class MigratingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = [flag for name in MODELS for flag in ("--model", f"{name}={EXAMPLES}/{name}/1")]
        cls.server = Server("", "--http_listen=127.0.0.1:0", *flags).__enter__()
        cls.addClassCleanup(cls.server.stop)
        with open(os.path.join(ROOT, "docs", "migrating.md"), encoding="utf-8") as file:
            parts = re.split(r"^## ", file.read(), flags=re.MULTILINE)
        cls.scripts = {part.splitlines()[0]: block for part in parts
                       for block in re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)}

    def printed(self, title: str) -> str:
        script = self.scripts[title].replace("127.0.0.1:8000", self.server.http_address)
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_every_script_has_a_test(self):
        self.assertEqual(set(self.scripts), {"From OpenAI, vLLM or llama.cpp", "From text-embeddings-inference (TEI)",
                                             "From Triton or KServe"})

    def test_openai(self):
        text, embedding = self.printed("From OpenAI, vLLM or llama.cpp").rsplit("[", 1)
        self.assertTrue(text.strip())
        self.assertEqual(len(embedding.split(",")), 3)

    def test_tei(self):
        embedding, ranks, labels = self.printed("From text-embeddings-inference (TEI)").splitlines()
        self.assertEqual(len(embedding.split(",")), 3)
        self.assertIn("'index'", ranks)
        self.assertIn("'positive'", labels)

    def test_triton(self):
        self.assertEqual(self.printed("From Triton or KServe").count("["), 3)


if __name__ == "__main__":
    unittest.main()
