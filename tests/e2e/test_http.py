"""The HTTP front of the real binary, with Python's own client: what the log says, a stream that outlives SIGTERM's
arrival, TLS, and flags that make no sense."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import tempfile
import unittest

from edgewise_process import BIN, EXAMPLES, HANG, TESTDATA, Server

HTTP = "--http_listen=127.0.0.1:0"
SMALL = {"model": "sbm", "inputs": [{"sequence": {"tokenIds": {"values": [1, 2, 3, 4]}}}]}


def ask(server: Server, path: str, body=None, connection=None, **fields) -> tuple:
    """The code and the body."""
    own = connection or http.client.HTTPConnection(server.http_address, timeout=HANG)
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    if body is None:
        own.request("GET", path, headers=headers)
    else:
        own.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = own.getresponse()
    answer = response.read()
    if connection is None:
        own.close()
    return response.status, answer


class HttpTest(unittest.TestCase):
    def test_log_lines_have_the_route(self):
        with Server(TESTDATA, HTTP) as server:
            self.assertEqual(ask(server, "/edgewise/v1/predict", SMALL, X_Request_Id="one")[0], 200)
            line = server.wait_for_event("request")
            self.assertEqual((line["request_id"], line["route"], line["code"]), ("one", "/edgewise/v1/predict", "OK"))
            self.assertEqual(ask(server, "/v1/embeddings", {"model": "nothing", "input": "x"})[0], 404)
            line = server.wait_for_event("refused")
            self.assertEqual((line["route"], line["code"]), ("/v1/embeddings", "NOT_FOUND"))
            self.assertNotIn("route", self.line_of_grpc(server))

    def line_of_grpc(self, server: Server) -> dict:
        server.predict("--model=sbm", "--token_ids=1,2,3")
        return server.wait_for_event("request")

    def test_every_model_of_a_text_answers_as_over_grpc(self):
        with Server(EXAMPLES, HTTP) as server:
            over_grpc = server.predict("--model=sentiment", "--text=a warm film", "--seed=3", "--samples=4")
            body = {"model": "sentiment", "inputs": [{"sequence": {"text": "a warm film"}}],
                    "ensemble": {"seed": 3, "samples": 4}}
            code, answer = ask(server, "/edgewise/v1/predict", body)
            self.assertEqual(code, 200, answer)
            over_http = json.loads(answer)
            self.assertEqual(over_http["predictions"][0]["label"], over_grpc["predictions"][0]["label"])
            self.assertEqual(over_http["predictions"][0]["edges"]["edges"], over_grpc["predictions"][0]["edges"]["edges"])

    def test_a_stream_outlives_the_arrival_of_sigterm(self):
        with Server(TESTDATA, HTTP) as server:
            connection = http.client.HTTPConnection(server.http_address, timeout=HANG)
            connection.request("POST", "/edgewise/v1/generate", json.dumps(
                {"model": "lm-ssa-local", "prompt": {"tokenIds": {"values": [3, 1, 4]}}, "maxNewTokens": 400,
                 "ensemble": {"samples": 16}}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertTrue(response.readline().startswith(b"data: "))
            server.process.send_signal(signal.SIGTERM)
            events = [line for line in response.read().splitlines() if line.startswith(b"data: ")]
            self.assertEqual(len(events), 399)
            self.assertTrue(json.loads(events[-1][6:])["done"])
            connection.close()
            self.assertEqual(server.process.wait(timeout=HANG), 0)

    def test_tls_is_that_of_grpc(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem")
            made = subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                 "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                capture_output=True, check=False)
            if made.returncode != 0:
                self.skipTest("openssl is not installed")
            server = Server(TESTDATA, HTTP, f"--tls_certificate={certificate}", f"--tls_key={key}")
            self.addCleanup(server.stop)
            context = ssl.create_default_context(cafile=certificate)
            connection = http.client.HTTPSConnection(server.http_address, timeout=HANG, context=context)
            for _ in range(2):  # on one connection
                code, _ = ask(server, "/v1/models", connection=connection)
                self.assertEqual(code, 200)
            connection.close()

    def test_an_open_address_needs_a_word(self):
        run = subprocess.run([os.path.join(BIN, "edgewise-server"), f"--model_repository={TESTDATA}", "--listen=127.0.0.1:0",
                              "--metrics_listen=", "--http_listen=0.0.0.0:0"], capture_output=True, text=True,
                             timeout=HANG, check=False)
        self.assertEqual(run.returncode, 2)
        self.assertIn("--http_listen=0.0.0.0:0 is not a loopback address", run.stderr)


if __name__ == "__main__":
    unittest.main()
