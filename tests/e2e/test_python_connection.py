"""client/python: models, errors, connections, and what its README says."""

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from edgewise_process import EXAMPLES, ROOT, TESTDATA, Server
from python_client import FILM, STAGED, ClientTest, compile_protos, edgewise, example, requests

TOKEN = "a-token-for-the-tests"


def python_of(readme: str) -> list:
    """The ```python blocks of a README."""
    return re.findall(r"^```python\n(.*?)^```$", pathlib.Path(ROOT, readme).read_text(), re.MULTILINE | re.DOTALL)


class ModelsTest(ClientTest):
    def test_models_are_those_of_the_repository(self):
        models = {model.name: model for model in self.client.models()}
        self.assertEqual(sorted(models), sorted(os.listdir(EXAMPLES)))
        sentiment = models["sentiment"]
        self.assertEqual((sentiment.version, sentiment.state, sentiment.task, sentiment.labels),
                         (1, "READY", "sequence-classification", ["negative", "positive"]))
        self.assertEqual(sentiment.sha256, sentiment.message.sha256)
        self.assertEqual(models["shakespeare-ssa"].labels, [])
        self.assertEqual(len(self.client.model("shakespeare-ssa").labels), models["shakespeare-ssa"].vocab_size)

    def test_a_broken_version_says_why(self):
        with tempfile.TemporaryDirectory() as repository:
            os.makedirs(os.path.join(repository, "broken", "1"))
            pathlib.Path(repository, "broken", "1", "config.json").write_text("{}")
            shutil.copytree(os.path.join(EXAMPLES, "sentiment"), os.path.join(repository, "good"))
            with Server(repository) as server, edgewise.Client(server.address) as client:
                states = {model.name: (model.state, bool(model.error)) for model in client.models()}
                error = self.error_of(lambda: client.predict("broken", "a"))
        self.assertEqual(states, {"good": ("READY", False), "broken": ("FAILED", True)})
        self.assertEqual(error.code, "FAILED_PRECONDITION")


class ErrorTest(ClientTest):
    def test_a_refusal_of_the_server_names_code_field_and_value(self):
        error = self.error_of(lambda: self.client.predict("sentiment", FILM, max_density=1.5))
        self.assertEqual((error.code, error.field, error.retry_delay), ("INVALID_ARGUMENT", "budget.max_density", None))
        self.assertIn("1.5", error.message)
        self.assertEqual(str(error), f"INVALID_ARGUMENT: {error.message}")
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((copy.code, copy.message, copy.field), (error.code, error.message, error.field))
        missing = self.error_of(lambda: self.client.predict("nobody", FILM))
        self.assertEqual((missing.code, missing.field), ("NOT_FOUND", None))
        self.assertIn("nobody", missing.message)

    def test_what_cannot_be_sent_is_told_in_the_same_words(self):
        for call, field, words in (
            (lambda: self.client.predict("m", FILM, samples=-1), "ensemble.samples", "samples is -1"),
            (lambda: self.client.predict("m", FILM, max_density="5%"), "budget.max_density", "max_density is '5%'"),
            (lambda: self.client.predict("m", FILM, max_edges=1, max_density=0.5), "budget", "exclude each other"),
            (lambda: self.client.predict("m", FILM, timeout=0), "timeout", "timeout is 0"),
            (lambda: self.client.predict("m", FILM, truncate="left"), "truncate", "'left'"),
            (lambda: self.client.predict("m", FILM, override={"window": 1}), "override", "window"),
            (lambda: self.client.predict("m", ["a", "b"]), "inputs[0]", "predict_many"),
            (lambda: self.client.predict("m", [1, 2.5]), "inputs[0]", "expected a text"),
            (lambda: self.client.predict("m", "\ud800"), "inputs[0]", "surrogates"),
            (lambda: self.client.predict_many("m", [[1], [[1.0], [1.0, 2.0]]]), "inputs[1]", "differ in length"),
            (lambda: self.client.predict("m", FILM, second=3), "inputs[0].second", "int"),
            (lambda: self.client.generate("m", None), "prompt", "neither"),
            (lambda: self.client.generate("m", 3), "prompt", "int"),
            (lambda: self.client.generate("m", "", messages=[]), "messages", "both"),
        ):
            with self.subTest(words):
                error = self.error_of(call)
                self.assertEqual((error.code, error.field), ("INVALID_ARGUMENT", field))
                self.assertIn(words, error.message)
        for call in (lambda: self.client.predict("m", FILM, max_edge=1),
                     lambda: self.client.generate("m", "", seeds=1)):
            with self.assertRaisesRegex(TypeError, "max_edge|seeds"):
                call()

    def test_a_full_queue_says_when_to_come_back(self):
        with Server(EXAMPLES, "--max_queue_requests=1", "--threads=1") as server:
            with edgewise.Client(server.address, timeout=60) as client:
                def ask(_):
                    try:
                        client.predict("long", "the " * 500, samples=16, truncate="tail")
                    except edgewise.Error as error:
                        return error
                with concurrent.futures.ThreadPoolExecutor(16) as pool:
                    refused = [error for error in pool.map(ask, range(16)) if error]
        self.assertTrue(refused)
        for error in refused:
            self.assertEqual((error.code, error.field), ("RESOURCE_EXHAUSTED", None))
            self.assertGreater(error.retry_delay, 0)

    def test_a_timeout_of_the_client_and_of_the_call(self):
        # Work of many seconds, and a timeout of which no busy machine loses half before it reads the call: a server
        # refuses such a call as RESOURCE_EXHAUSTED.
        texts = ["the " * 500] * 128
        for of_client, of_call in ((2, {}), (600, {"timeout": 2})):
            with edgewise.Client(self.server.address, timeout=of_client) as client:
                error = self.error_of(lambda: client.predict_many("long", texts, samples=256, truncate="tail", **of_call))
            self.assertEqual(error.code, "DEADLINE_EXCEEDED")


class ConnectionTest(ClientTest):
    def test_the_address_is_given_or_in_the_environment_or_the_default(self):
        with mock.patch.dict(os.environ, EDGEWISE_SERVER=self.server.address):
            with edgewise.Client() as client:
                self.assertEqual(len(client.models()), len(os.listdir(EXAMPLES)))
            self.assertEqual(edgewise.Client("host:1").address, "host:1")
        with mock.patch.dict(os.environ):
            os.environ.pop("EDGEWISE_SERVER", None)
            self.assertEqual(edgewise.Client().address, "127.0.0.1:8001")
        for given, found in (("localhost", "localhost:8001"), ("::1", "[::1]:8001"), ("[::1]", "[::1]:8001"),
                             ("[::1]:9", "[::1]:9"), ("unix:/tmp/socket", "unix:/tmp/socket")):
            self.assertEqual(edgewise.Client(given).address, found)
        self.assertEqual(self.error_of(lambda: edgewise.Client("host:port")).field, "address")

    def test_a_server_that_is_not_there(self):
        error = self.error_of(lambda: edgewise.Client("127.0.0.1:1").predict("sentiment", FILM))
        self.assertEqual(error.code, "UNAVAILABLE")
        self.assertRegex(error.message, "^cannot connect to 127.0.0.1:1: is edgewise-server running there?")

    def test_a_token_stays_off_plain_text_to_other_machines(self):
        for address in ("example.org:8001", "127.0.0.1.example.org:8001", "10.0.0.1:8001", "[fe80::1]:8001"):
            error = self.error_of(lambda address=address: edgewise.Client(address, token=TOKEN))
            self.assertEqual((error.code, error.field), ("INVALID_ARGUMENT", "token"))
            self.assertNotIn(TOKEN, str(error))
            edgewise.Client(address, token=TOKEN, tls=True).close()
            edgewise.Client(address, token=TOKEN, allow_plain_token=True).close()
        for address in ("127.1.2.3:8001", "localhost:8001", "[::1]:8001", "unix:/tmp/socket"):
            edgewise.Client(address, token=TOKEN).close()
        for token in ("", "a\nb", "a b", "ä"):
            error = self.error_of(lambda token=token: edgewise.Client("localhost", token=token))
            self.assertEqual(error.field, "token")

    def test_tls_certificates_and_tokens(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                            "/CN=edgewise.test", "-addext", "subjectAltName=DNS:edgewise.test", "-keyout", key, "-out",
                            certificate], check=True, capture_output=True)
            tokens = pathlib.Path(folder, "tokens")
            tokens.write_text(TOKEN + "\n")
            flags = (f"--tls_certificate={certificate}", f"--tls_key={key}", f"--auth_token_file={tokens}",
                     f"--tls_client_ca={certificate}")
            whole = {"ca_file": certificate, "cert_file": certificate, "key_file": key, "server_name": "edgewise.test"}
            with secured(*flags) as address:
                def ask(tls=True, token=TOKEN, **change):
                    tls = edgewise.Tls(**{**whole, **change}) if tls is True else tls
                    with edgewise.Client(address, tls=tls, token=token, timeout=30) as client:
                        return client.models()
                self.assertTrue(ask())
                for call, code, words in (
                    (lambda: ask(token=None), "UNAUTHENTICATED", "authorization is missing"),
                    (lambda: ask(token=TOKEN + "x"), "UNAUTHENTICATED", "token"),
                    (lambda: ask(tls=False), "UNAVAILABLE", "does it want TLS"),
                    (lambda: ask(cert_file=None, key_file=None), "UNAVAILABLE", "want a client's certificate"),
                    (lambda: ask(ca_file=None), "UNAVAILABLE", "nobody that tls trusts signed"),
                    (lambda: ask(server_name="other.test"), "UNAVAILABLE", "certificate is for another name"),
                    (lambda: ask(key_file=None), "INVALID_ARGUMENT", "go together"),
                    (lambda: ask(ca_file="/nowhere.pem"), "NOT_FOUND", 'tls.ca_file: cannot read "/nowhere.pem"'),
                ):
                    with self.subTest(words):
                        error = self.error_of(call)
                        self.assertEqual(error.code, code)
                        self.assertIn(words, error.message)
            plain = self.error_of(lambda: edgewise.Client(self.server.address, tls=edgewise.Tls(certificate)).models())
            self.assertIn("does not encrypt", plain.message)


@contextlib.contextmanager
def secured(*flags: str):
    """A server that the command line's health check cannot ask without certificates: the log says when it serves."""
    server = Server(TESTDATA, *flags)
    try:
        yield server.address
    finally:
        server.stop()


class ReadmeTest(ClientTest):
    def run_python(self, lines: str, folder: str = STAGED.name) -> str:
        """Runs them as they stand but for the address, in a Python of their own."""
        self.assertIn('"127.0.0.1:8001"', lines)
        environment = {**os.environ, "PYTHONPATH": folder}
        result = subprocess.run([sys.executable, "-c", lines.replace("127.0.0.1:8001", self.server.address)], text=True,
                                capture_output=True, timeout=120, check=False, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_the_lines_of_the_readme_run(self):
        block, = python_of("README.md")
        self.assertLessEqual(len(block.splitlines()), 7)
        self.assertRegex(self.run_python(block), r"positive 0\.\d+ ")

    def test_the_lines_of_the_packages_readme_run(self):
        block, several = python_of("client/python/README.md")
        output = self.run_python(block)
        self.assertRegex(output, r"^positive 0\.\d+ ")
        self.assertIn("'sentiment'", output)
        self.assertRegex(self.run_python(several), r"^positive\n0\.\d+\n$")  # the other address is nobody's

    def test_the_readme_names_every_argument_and_attribute(self):
        text = pathlib.Path(ROOT, "client", "python", "README.md").read_text()
        named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
        for options in (requests.PredictOptions, requests.GenerateOptions, requests.Override):
            self.assertLessEqual(set(options.__annotations__), named)
        answer = self.client.predict("sentiment", FILM)
        self.assertLessEqual(set(vars(answer)), named)
        self.assertLessEqual(set(vars(self.client.score("shakespeare-ssa", "To be"))), named)
        self.assertLessEqual(set(vars(edgewise.Error("a", "b"))), named)

    @unittest.skipUnless(all(importlib.util.find_spec(name) for name in ("pip", "setuptools", "wheel")),
                         "pip, setuptools and wheel are not all installed")
    def test_pip_installs_it_and_a_source_distribution_holds_its_protos(self):
        with tempfile.TemporaryDirectory() as folder:
            package, dist = os.path.join(folder, "client", "python"), os.path.join(folder, "dist")
            shutil.copytree(compile_protos.FOLDER, package)
            shutil.copytree(os.path.join(ROOT, "proto"), os.path.join(folder, "proto"))
            subprocess.run([sys.executable, "setup.py", "-q", "sdist", f"--dist-dir={dist}"], cwd=package, check=True,
                           capture_output=True)
            archive, = pathlib.Path(dist).iterdir()
            installed = os.path.join(folder, "installed")
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                            "--no-build-isolation", f"--target={installed}", str(archive)], cwd=folder, check=True,
                           capture_output=True)
            block, = python_of("README.md")
            self.assertRegex(self.run_python(block, installed), r"positive 0\.\d+ ")


if __name__ == "__main__":
    unittest.main()
