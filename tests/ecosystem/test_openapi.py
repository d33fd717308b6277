"""The document at /openapi.json says what the server does: a good request of each route has the declared answer, and
schemathesis finds no request with another, nor one with a 500. Needs a Python with `schemathesis`; the server's binaries
are found as in tests/e2e."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import schemathesis

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import HANG, TESTDATA, Server  # noqa: E402

MODELS = {"encoder": "sentence/mean", "ranker": "sentence/cross_encoder", "classes": "hugging_face/bert_sequence",
          "writer": "hugging_face/gpt2_untied"}
TEXTS = {"inputs": ["the cat", "a dog"]}
RANKS = {"query": "a dog", "texts": ["the cat", "old"], "return_text": True}
SIMILAR = {"inputs": {"source_sentence": "a dog", "sentences": ["the cat", "old"]}}
CHAT = {"model": "writer", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
DOCUMENTS = {"query": "a dog", "documents": ["the cat", "old"], "return_documents": True}
SEQUENCE = {"sequence": {"text": "the cat"}}
# By path: bodies of POST; None: GET. {name} is the model beside them.
GOOD = {
    "/v1/completions": [
        {"model": "writer", "prompt": ["hello", "a"], "max_tokens": 4, "n": 2, "logprobs": 3},
        {"model": "writer", "prompt": [5, 9], "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0},
        {"model": "writer", "prompt": "hello", "stream": True, "max_tokens": 3}],
    "/v1/chat/completions": [{**CHAT, "logprobs": True, "top_logprobs": 2}, {**CHAT, "stream": True, "n": 2}],
    "/v1/embeddings": [{"model": "encoder", "input": "a"}, {"model": "encoder", "input": [[1, 2]], "dimensions": 3},
                       {"model": "encoder", "input": ["a"], "encoding_format": "base64", "edgewise": {"samples": 2}}],
    "/embed": [{**TEXTS, "normalize": False}],
    "/models/{name}/embed": ("encoder", [TEXTS]),
    "/embed_all": [{**TEXTS, "truncate": True}],
    "/models/{name}/embed_all": ("encoder", [TEXTS]),
    "/similarity": [SIMILAR],
    "/models/{name}/similarity": ("encoder", [SIMILAR]),
    "/predict": [{"inputs": "a dog", "model": "classes"}, {"inputs": [["a"], ["b", "c"]], "model": "classes"}],
    "/models/{name}/predict": ("ranker", [{"inputs": ["a", "b"], "raw_scores": True}]),
    "/rerank": [RANKS],
    "/models/{name}/rerank": ("ranker", [RANKS]),
    "/": [{**TEXTS, "model": "encoder"}, {**RANKS, "model": "ranker"}],
    "/models/{name}": ("classes", [{"inputs": "a dog"}]),
    "/tokenize": [{**TEXTS, "model": "encoder"}],
    "/models/{name}/tokenize": ("encoder", [TEXTS]),
    "/decode": [{"ids": [5, 6, 7], "model": "encoder"}],
    "/models/{name}/decode": ("encoder", [{"ids": [[5, 6], [7]]}]),
    "/models/{name}/info": ("encoder", None),
    "/v1/models/{name}": ("writer", None),
    "/edgewise/v1/models/{name}": ("writer", None),
    "/page/{name}": ("page.css", None),
    "/v1/rerank": [{**DOCUMENTS, "model": "ranker"}],
    "/v2/rerank": [{**DOCUMENTS, "model": "ranker"}],
    "/edgewise/v1/predict": [
        {"model": "classes", "inputs": [SEQUENCE], "ensemble": {"samples": "3", "seed": "5"}, "outputs": {"logits": True}},
        {"model": "writer", "inputs": [SEQUENCE]}],
    "/edgewise/v1/generate": [{"model": "writer", "prompt": {"text": "hello"}, "maxNewTokens": 3}],
}
# The Open Inference Protocol: its own clients ask these routes, some with other bodies than JSON.
OTHERS = ("/v2/models", "/v2/repository")
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
          "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance")
REFUSALS = [400, 401, 403, 404, 405, 408, 413, 415, 422, 424, 429, 431, 503, 504]
EXAMPLES = os.environ.get("EDGEWISE_SCHEMATHESIS_EXAMPLES", "100")  # of each operation


class OpenApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = []
        for name, folder in MODELS.items():
            flags += ["--model", f"{name}={TESTDATA}_{folder}/1"]
        cls.server = Server("", "--http_listen=127.0.0.1:0", *flags).__enter__()
        cls.url = f"http://{cls.server.http_address}"
        with urllib.request.urlopen(f"{cls.url}/openapi.json", timeout=HANG) as response:
            cls.document = json.load(response)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_a_good_request_of_each_route_has_the_declared_answer(self):
        for result in schemathesis.openapi.from_dict(self.document).get_all_operations():
            operation = result.ok()
            path = operation.path
            if path.startswith(OTHERS):
                continue
            name, bodies = None, GOOD.get(path) if operation.method == "post" else None
            if isinstance(GOOD.get(path), tuple):
                name, bodies = GOOD[path]
            self.assertEqual(bodies is None, operation.method == "get", f"{path} has no good request here")
            for body in bodies or [None]:
                with self.subTest(path, body=body):
                    case = operation.Case(path_parameters={"name": name} if name else {},
                                          **({"body": body, "media_type": "application/json"} if body else {}))
                    response = case.call(base_url=self.url)
                    # /info is of the only model, and there are several.
                    self.assertEqual(response.status_code, 422 if path == "/info" else 200, response.text)
                    case.validate_response(response)

    def test_no_request_has_another_answer_than_declared_nor_a_500(self):
        # Requests for models that are not there would get no further.
        for message, schema in self.document["components"]["schemas"].items():
            if "model" in schema.get("properties", {}) and not message.endswith("Response"):
                schema["properties"]["model"] = {"enum": [*MODELS, "encoder@1", "nothing", ""]}
        for methods in self.document["paths"].values():
            for operation in methods.values():
                for parameter in operation.get("parameters", []):
                    if parameter["name"] == "name":
                        parameter["schema"] = {"enum": [*MODELS, "nothing"]}
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "schemathesis.toml"), "w", encoding="utf-8") as file:
                file.write(f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSALS}\n")
            document = os.path.join(folder, "openapi.json")
            with open(document, "w", encoding="utf-8") as file:
                json.dump(self.document, file)
            run = subprocess.run(
                [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "--no-color", "run", document,
                 f"--url={self.url}", f"--checks={CHECKS}", f"--max-examples={EXAMPLES}", "--seed=1",
                 "--phases=examples,coverage,fuzzing", "--suppress-health-check=all", "--continue-on-failure",
                 "--exclude-path-regex=^(" + "|".join(OTHERS) + ")"],
                cwd=folder, capture_output=True, text=True, check=False)
        print(run.stdout[-1500:])
        self.assertEqual(run.returncode, 0, run.stdout[-20000:] + run.stderr[-2000:])
        self.assertIsNone(self.server.process.poll())
        self.assertIn('edgewise_call_memory_bytes 0\n', self.server.metrics())


if __name__ == "__main__":
    unittest.main()
