"""The scripts of docs/migrating.md as they stand, against a server on other ports. Needs a Python with `openai` and
`tritonclient`; the server's binaries are found as in tests/e2e."""

import json
import os
import re
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import EXAMPLES, HANG, ROOT, TESTDATA, Server  # noqa: E402

# The models of the scripts; in their places small ones where the bundled ones cannot do the task.
MODELS = {"shakespeare-llama": ("chat_template.jinja", "hugging_face/gpt2_untied"),
          "review-encoder": ("modules.json", "sentence/mean"),
          "review-ranker": ("modules.json", "sentence/cross_encoder"),
          "sentiment": ("config.json", "")}


def folder_of(name: str) -> str:
    needed, other = MODELS[name]
    bundled = os.path.join(EXAMPLES, name, "1")
    return bundled if os.path.exists(os.path.join(bundled, needed)) else f"{TESTDATA}_{other}/1"


class MigratingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = [flag for name in MODELS for flag in ("--model", f"{name}={folder_of(name)}")]
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
        with urllib.request.urlopen(f"http://{self.server.http_address}/openapi.json", timeout=HANG) as response:
            if "/v2/models/{name}/infer" not in json.load(response)["paths"]:
                self.skipTest("this server has no Open Inference Protocol")
        self.assertEqual(self.printed("From Triton or KServe").count("["), 3)


if __name__ == "__main__":
    unittest.main()
