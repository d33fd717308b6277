"""The inference clients of the package `kserve`, as it comes from PyPI, against a server: REST and gRPC. Needs a Python
with `kserve`; the server's binaries are found as in tests/e2e."""

import asyncio
import os
import sys
import unittest

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import TESTDATA, Server  # noqa: E402

MODEL = "sbm"
PARAMETERS = {"seed": 7, "samples": 3, "max_edges": 20}


def request(ids, model=MODEL, numpy=False, outputs=None, parameters=None) -> InferRequest:
    tensor = InferInput("input_ids", [1, len(ids)], "INT64", data=None if numpy else ids)
    if numpy:
        tensor.set_data_from_numpy(np.array([ids], dtype=np.int64), binary_data=True)
    return InferRequest(model_name=model, infer_inputs=[tensor], request_id="mine",
                        parameters=PARAMETERS if parameters is None else parameters, request_outputs=outputs)


class KserveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESTDATA, "--http_listen=127.0.0.1:0").__enter__()
        cls.url = f"http://{cls.server.http_address}"
        cls.addClassCleanup(cls.server.stop)
        cls.expected = cls.server.predict(f"--model={MODEL}", "--token_ids=1,2,3,4", "--seed=7", "--samples=3",
                                          "--max_edges=20")["predictions"][0]

    def expect_probabilities(self, response):
        found = np.asarray(response.get_output_by_name("probabilities").as_numpy(), dtype=np.float32)
        np.testing.assert_array_equal(found[0], np.array(self.expected["probabilities"], dtype=np.float32))
        self.assertLessEqual(response.get_output_by_name("edges").as_numpy()[0], 20)
        self.assertEqual(response.id, "mine")

    def test_rest(self):
        async def ask():
            client = InferenceRESTClient(RESTConfig(protocol="v2"))
            self.assertTrue(await client.is_server_live(self.url))
            self.assertTrue(await client.is_server_ready(self.url))
            self.assertTrue(await client.is_model_ready(self.url, MODEL))
            binary = [RequestedOutput(name, parameters={"binary_data": True}) for name in ("probabilities", "edges")]
            for asked in (request([1, 2, 3, 4]), request([1, 2, 3, 4], numpy=True),
                          request([1, 2, 3, 4], numpy=True, outputs=binary)):
                self.expect_probabilities(await client.infer(self.url, asked, model_name=MODEL))
            with self.assertRaisesRegex(httpx.HTTPStatusError, r"input_ids\[0\]\[1\] is 99"):
                await client.infer(self.url, request([1, 99]), model_name=MODEL)
            with self.assertRaises(httpx.HTTPStatusError) as unknown:
                await client.infer(self.url, request([1], model="nothing"), model_name="nothing")
            self.assertEqual(unknown.exception.response.status_code, 404)

        asyncio.run(ask())

    def test_grpc(self):
        async def ask():
            async with InferenceGRPCClient(self.server.address) as client:
                self.assertTrue(await client.is_server_live())
                self.assertTrue(await client.is_server_ready())
                self.assertTrue(await client.is_model_ready(MODEL))
                for numpy in (False, True):
                    self.expect_probabilities(await client.infer(request([1, 2, 3, 4], numpy=numpy)))
                # Its parameters have no numbers with a fraction.
                response = await client.infer(request([1, 2, 3, 4], parameters={"max_density": "0.5"}))
                self.assertLessEqual(response.get_output_by_name("density").as_numpy()[0], 0.5)
                with self.assertRaises(grpc.aio.AioRpcError) as wrong:
                    await client.infer(request([1, 99]))
                self.assertEqual(wrong.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn("input_ids[0][1] is 99", wrong.exception.details())

        asyncio.run(ask())


if __name__ == "__main__":
    unittest.main()
