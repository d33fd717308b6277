"""The package `tritonclient`, as it comes from PyPI, against a server: gRPC, HTTP and asyncio, with tensors in binary
form and as JSON. Needs a Python with `tritonclient[all]`; the server's binaries are found as in tests/e2e."""

import asyncio
import os
import queue
import sys
import tempfile
import unittest

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import HANG, TESTDATA, Server  # noqa: E402

MODEL, ENCODER = "sbm", "mean"
IDS = np.array([[1, 2, 3, 4]], dtype=np.int64)


def ids_of(package, ids=IDS, **how):
    tensor = package.InferInput("input_ids", list(ids.shape), "INT64")
    tensor.set_data_from_numpy(ids, **how)
    return tensor


def text_of(package, texts, **how):
    array = np.array([[text] for text in texts], dtype=np.object_)
    tensor = package.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array, **how)
    return tensor


class Clients(unittest.TestCase):
    """A server of the small models, and what Predict says of four tokens."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESTDATA, "--http_listen=127.0.0.1:0").__enter__()
        cls.addClassCleanup(cls.server.stop)
        cls.expected = cls.server.predict(f"--model={MODEL}", "--token_ids=1,2,3,4", "--seed=7", "--samples=3",
                                          "--max_edges=20")["predictions"][0]

    def expect_probabilities(self, result, row=0):
        found = result.as_numpy("probabilities")
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(found[row], np.array(self.expected["probabilities"], dtype=np.float32))
        self.assertLessEqual(result.as_numpy("edges")[row], 20)


PARAMETERS = {"seed": 7, "samples": 3, "max_edges": 20}


class GrpcTest(Clients):
    def setUp(self):
        self.client = triton_grpc.InferenceServerClient(self.server.address)
        self.addCleanup(self.client.close)

    def test_the_server_and_its_models_tell_of_themselves(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertTrue(self.client.is_model_ready(MODEL, "1"))
        self.assertIn("statistics", self.client.get_server_metadata().extensions)
        metadata = self.client.get_model_metadata(MODEL)
        self.assertEqual(list(metadata.versions), ["1"])
        self.assertEqual(metadata.inputs[0].name, "input_ids")
        self.assertEqual(list(metadata.inputs[0].shape), [-1, -1])
        config = self.client.get_model_config(MODEL).config
        self.assertEqual(config.max_batch_size, 1024)
        self.assertEqual(config.backend, "edgewise")
        index = self.client.get_model_repository_index().models
        self.assertEqual({model.state for model in index}, {"READY"})
        self.assertIn(MODEL, [model.name for model in index])

    def test_infer_gives_the_numbers_of_predict(self):
        result = self.client.infer(MODEL, [ids_of(triton_grpc)], request_id="mine", parameters=PARAMETERS)
        self.expect_probabilities(result)
        response = result.get_response()
        self.assertEqual(response.id, "mine")
        self.assertEqual(response.model_version, "1")
        self.assertEqual(response.parameters["seed"].int64_param, 7)
        self.assertEqual(result.as_numpy("label")[0].decode(), self.expected["label"])
        # As clients of C++ send parameters; and outputs by name.
        outputs = [triton_grpc.InferRequestedOutput(name) for name in ("edges", "probabilities")]
        result = self.client.infer(MODEL, [ids_of(triton_grpc)], outputs=outputs,
                                   parameters={key: str(value) for key, value in PARAMETERS.items()})
        self.expect_probabilities(result)
        self.assertIsNone(result.as_numpy("label"))

    def test_many_inputs_in_one_call_and_calls_that_do_not_wait(self):
        many = np.repeat(IDS, 64, axis=0)
        result = self.client.infer(MODEL, [ids_of(triton_grpc, many)], parameters=PARAMETERS)
        for row in range(64):
            self.expect_probabilities(result, row)
        answers = queue.Queue()
        self.client.async_infer(MODEL, [ids_of(triton_grpc)], parameters=PARAMETERS,
                                callback=lambda result, error: answers.put((result, error)))
        result, error = answers.get(timeout=HANG)
        self.assertIsNone(error)
        self.expect_probabilities(result)

    def test_statistics_count_what_was_asked(self):
        def counts():
            stats = self.client.get_inference_statistics(MODEL).model_stats[0]
            return stats.inference_stats.queue.count, stats.inference_count

        before = counts()
        self.client.infer(MODEL, [ids_of(triton_grpc, np.repeat(IDS, 3, axis=0))])
        self.assertEqual(counts(), (before[0] + 1, before[1] + 3))

    def test_errors_name_what_is_wrong(self):
        with self.assertRaisesRegex(InferenceServerException, r"input_ids\[0\]\[1\] is 99"):
            self.client.infer(MODEL, [ids_of(triton_grpc, np.array([[1, 99]], dtype=np.int64))])
        with self.assertRaisesRegex(InferenceServerException, "did you mean max_density"):
            self.client.infer(MODEL, [ids_of(triton_grpc)], parameters={"max_densty": 0.5})
        with self.assertRaisesRegex(InferenceServerException, "NOT_FOUND"):
            self.client.infer("nothing", [ids_of(triton_grpc)])
        with self.assertRaisesRegex(InferenceServerException, "follows its repository"):
            self.client.load_model(MODEL)
        with self.assertRaisesRegex(InferenceServerException, "shared memory is not served"):
            self.client.register_system_shared_memory("x", "/x", 10)
        with self.assertRaisesRegex(InferenceServerException, "DEADLINE_EXCEEDED"):
            self.client.infer(MODEL, [ids_of(triton_grpc)], timeout=1)

    def test_asyncio(self):
        async def ask():
            async with triton_grpc_aio.InferenceServerClient(self.server.address) as client:
                self.assertTrue(await client.is_server_ready())
                return await asyncio.gather(*(client.infer(MODEL, [ids_of(triton_grpc)], parameters=PARAMETERS)
                                              for _ in range(20)))

        for result in asyncio.run(ask()):
            self.expect_probabilities(result)


class HttpTest(Clients):
    def setUp(self):
        self.client = triton_http.InferenceServerClient(self.server.http_address)
        self.addCleanup(self.client.close)

    def test_the_server_and_its_models_tell_of_themselves(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertFalse(self.client.is_model_ready("nothing"))
        self.assertEqual(self.client.get_server_metadata()["name"], "edgewise")
        self.assertEqual(self.client.get_model_metadata(MODEL, "1")["inputs"][0]["datatype"], "INT64")
        self.assertEqual(self.client.get_model_config(MODEL)["max_batch_size"], 1024)
        self.assertIn(MODEL, [model["name"] for model in self.client.get_model_repository_index()])
        self.client.infer(MODEL, [ids_of(triton_http)])
        stats = self.client.get_inference_statistics(MODEL)["model_stats"][0]
        self.assertGreater(stats["inference_stats"]["queue"]["count"], 0)

    def test_infer_gives_the_numbers_of_predict_in_either_form(self):
        for binary_in in (True, False):
            for binary_out in (True, False, None):
                outputs = None if binary_out is None else [
                    triton_http.InferRequestedOutput(name, binary_data=binary_out)
                    for name in ("edges", "label", "probabilities")]
                result = self.client.infer(MODEL, [ids_of(triton_http, binary_data=binary_in)], outputs=outputs,
                                           request_id="mine", parameters=PARAMETERS)
                self.expect_probabilities(result)
                label = result.as_numpy("label")[0]
                self.assertEqual(label if isinstance(label, str) else label.decode(), self.expected["label"])
                self.assertEqual(result.get_response()["id"], "mine")

    def test_errors_name_what_is_wrong(self):
        for binary in (True, False):
            with self.assertRaisesRegex(InferenceServerException, r"input_ids\[0\]\[1\] is 99"):
                self.client.infer(MODEL, [ids_of(triton_http, np.array([[1, 99]]), binary_data=binary)])
        with self.assertRaisesRegex(InferenceServerException, "follows its repository"):
            self.client.unload_model(MODEL)
        with self.assertRaisesRegex(InferenceServerException, "shared memory is not served"):
            self.client.get_system_shared_memory_status()

    def test_asyncio(self):
        async def ask():
            async with triton_http_aio.InferenceServerClient(self.server.http_address) as client:
                self.assertTrue(await client.is_model_ready(MODEL))
                self.assertGreater(len(await client.get_model_repository_index()), 1)
                return await asyncio.gather(*(
                    client.infer(MODEL, [ids_of(triton_http, binary_data=i % 2 == 0)], parameters=PARAMETERS)
                    for i in range(20)))

        for result in asyncio.run(ask()):
            self.expect_probabilities(result)


class TextTest(unittest.TestCase):
    def test_embeddings_of_texts_are_those_of_predict(self):
        texts = ["the cat", "a dog sat"]
        with Server(TESTDATA + "_sentence", "--http_listen=127.0.0.1:0") as server:
            expected = np.array([server.predict(f"--model={ENCODER}", f"--text={text}")["predictions"][0]["embedding"]
                                 for text in texts], dtype=np.float32)
            grpc = triton_grpc.InferenceServerClient(server.address)
            http = triton_http.InferenceServerClient(server.http_address)
            self.addCleanup(grpc.close)
            self.addCleanup(http.close)
            for result in (grpc.infer(ENCODER, [text_of(triton_grpc, texts)]),
                           http.infer(ENCODER, [text_of(triton_http, texts)]),
                           http.infer(ENCODER, [text_of(triton_http, texts, binary_data=False)])):
                np.testing.assert_array_equal(result.as_numpy("embedding"), expected)


class TokenTest(unittest.TestCase):
    def test_a_token_goes_in_the_metadata(self):
        with tempfile.TemporaryDirectory() as folder:
            tokens = os.path.join(folder, "tokens")
            with open(tokens, "w", encoding="utf-8") as file:
                file.write("0123456789abcdef\n")
            server = Server(TESTDATA, "--http_listen=127.0.0.1:0", f"--auth_token_file={tokens}")
            self.addCleanup(server.stop)
            headers = {"authorization": "Bearer 0123456789abcdef"}
            for package, address in ((triton_grpc, server.address), (triton_http, server.http_address)):
                client = package.InferenceServerClient(address)
                self.addCleanup(client.close)
                self.assertEqual(getattr(client.get_server_metadata(headers=headers), "name", "edgewise"), "edgewise")
                with self.assertRaises(InferenceServerException):
                    client.get_server_metadata()


if __name__ == "__main__":
    unittest.main()
