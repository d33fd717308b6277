"""Several replicas: the clients share calls between them, lose none when one goes, and spread an ensemble over them."""

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from edgewise_process import BIN, EXAMPLES, HANG, TESTDATA, Server, total, wait_until
from python_client import FILM, edgewise, example, pb

FOLDERS = TESTDATA + "_hugging_face"
LONG = {"samples": 144, "seed": 5, "truncate": "tail", "top_k": 2, "layer_stats": True}
LONG_TEXT = "the film " * 1000


def answered(server: Server) -> float:
    return total(server.metrics(), "edgewise_requests_total")


def run_cli(servers: list, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "EDGEWISE_SERVER": ",".join(server.address for server in servers)}
    return subprocess.run([os.path.join(BIN, "edgewise"), *arguments], capture_output=True, text=True, timeout=2 * HANG,
                          check=False, env=environment)


class ReplicasTest(unittest.TestCase):
    """Each test has servers of its own, since it ends some."""

    def setUp(self):
        self.repository = self.enter(tempfile.TemporaryDirectory())
        for model in ("sentiment", "long"):
            shutil.copytree(os.path.join(EXAMPLES, model), os.path.join(self.repository, model))

    def enter(self, context):
        entered = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return entered

    def start(self, number: int, *flags: str) -> list:
        return [self.enter(Server(self.repository, *flags)) for _ in range(number)]

    def connect(self, servers: list) -> edgewise.Client:
        return self.enter(edgewise.Client([server.address for server in servers], timeout=HANG))

    def error_of(self, call) -> edgewise.Error:
        with self.assertRaises(edgewise.Error) as caught:
            call()
        return caught.exception


class RolloutTest(ReplicasTest):
    CALLS = 400  # `./dev bench rollout` makes 10000, through proxies too

    def check_share(self, servers: list, before: list) -> None:
        counts = [answered(server) - was for server, was in zip(servers, before)]
        self.assertEqual(sum(counts), self.CALLS)
        self.assertTrue(all(0.4 <= count / self.CALLS <= 0.6 for count in counts), counts)

    def test_a_replica_that_is_terminated_loses_no_call_of_the_python_client(self):
        servers = self.start(2)
        client = self.connect(servers)
        wait_until("both replicas to be asked", lambda: client.predict("sentiment", FILM) and all(map(answered, servers)))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            before = list(map(answered, servers))
            list(pool.map(lambda _: client.predict("sentiment", FILM), range(self.CALLS)))
            self.check_share(servers, before)
            ended = threading.Event()
            calls = [pool.submit(self.call_until, client, ended) for _ in range(4)]
            wait_until("calls", lambda: answered(servers[0]) > before[0] + self.CALLS)
            self.assertEqual(servers[0].stop(), 0)
            servers[1].wait = answered(servers[1])
            wait_until("more calls", lambda: answered(servers[1]) > servers[1].wait + self.CALLS / 2)
            ended.set()
            self.assertGreater(sum(call.result() for call in calls), self.CALLS)  # none raised

    @staticmethod
    def call_until(client: edgewise.Client, ended: threading.Event) -> int:
        count = 0
        while not ended.is_set():
            client.predict("sentiment", FILM)
            count += 1
        return count

    def test_a_replica_that_is_terminated_loses_no_call_of_the_cpp_client(self):
        servers = self.start(2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "json")
            bench = ["bench", "--model=sentiment", f"--text={FILM}", "--concurrency=4", f"--json={path}"]
            before = list(map(answered, servers))
            # The first calls go to the replica that is connected first: so slowly that they are few.
            self.assertEqual(run_cli(servers, *bench, f"--requests={self.CALLS - 1}", "--warmup=1", "--rate=100").returncode, 0)
            self.check_share(servers, before)
            before = list(map(answered, servers))
            killer = threading.Thread(target=lambda: (
                wait_until("calls", lambda: answered(servers[0]) > before[0] + self.CALLS / 4), servers[0].stop()))
            killer.start()
            result = run_cli(servers, *bench, f"--requests={3 * self.CALLS}", "--rate=400")
            killer.join()
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            with open(path, encoding="utf-8") as file:
                summary = json.load(file)
        self.assertEqual((summary["answered"], summary["failed"]), (3 * self.CALLS, 0))
        self.assertEqual(servers[0].process.returncode, 0)

    def test_a_replica_that_is_not_there_yet_is_found(self):
        one, = self.start(1)
        other, = self.start(1)
        address = other.address
        other.stop()
        with edgewise.Client([one.address, address], timeout=HANG) as client:
            for _ in range(20):
                client.predict("sentiment", FILM)
            again = self.enter(Server(self.repository, f"--listen={address}"))
            wait_until("the replica to be asked", lambda: client.predict("sentiment", FILM) and answered(again))

    def test_a_name_stands_for_its_addresses(self):
        try:
            socket.getaddrinfo("localhost", None)
        except OSError:
            self.skipTest("the machine does not know the name localhost (/etc/hosts)")
        server, = self.start(1)
        name = "dns:///localhost:" + server.address.split(":")[1]
        with edgewise.Client(name, timeout=HANG) as client:
            one = client.predict("sentiment", FILM, samples=4, seed=1)
            spread = client.predict("sentiment", FILM, samples=4, seed=1, spread=True)
        self.assertEqual(spread.message.SerializeToString(), one.message.SerializeToString())
        self.assertEqual(run_cli([], "predict", f"--server={name}", "--model=sentiment", f"--text={FILM}").returncode, 0)

    def test_health_is_asked_with_the_token_where_it_is_encrypted(self):
        certificate, key, tokens = (os.path.join(self.repository, name) for name in ("certificate", "key", "tokens"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=edgewise.test",
                        "-addext", "subjectAltName=DNS:edgewise.test", "-keyout", key, "-out", certificate], check=True,
                       capture_output=True)
        with open(tokens, "w", encoding="utf-8") as file:
            file.write("a-token-for-the-tests\n")
        flags = (f"--tls_certificate={certificate}", f"--tls_key={key}", f"--auth_token_file={tokens}")
        servers = [Server(self.repository, *flags) for _ in range(2)]
        try:
            for server in servers:
                for _ in range(2):
                    server.wait_for_event("model loaded")
            addresses = [server.address for server in servers]
            tls = edgewise.Tls(certificate, server_name="edgewise.test")
            with edgewise.Client(addresses, tls=tls, token="a-token-for-the-tests", timeout=HANG) as client:
                wait_until("both", lambda: client.predict("sentiment", FILM) and all(map(answered, servers)))
                self.assertEqual(client.predict("sentiment", FILM, samples=4, spread=True).samples, 4)
            with edgewise.Client(addresses, tls=tls, timeout=HANG) as client:
                error = self.error_of(lambda: client.predict("sentiment", FILM))
            self.assertEqual(error.code, "UNAVAILABLE")
            self.assertIn("is a token wanted?", error.message)
        finally:
            for server in servers:
                server.stop()


class AddressTest(unittest.TestCase):
    def test_what_is_no_address_is_refused_by_name(self):
        for address, words in (
                (["a:1", ""], 'address has ""'), ("a:1,", 'address has ""'), ([], "a list of them"), ([3], "a list of them"),
                (["a:1", "unix:/b"], '"unix:/b"; expected HOST:PORT in each place'), ("a:1,dns:///b", "to stand alone"),
                ("dns:///a,b", "with one name"), ("ipv4:host:1", "expected an IPv4 address"),
                ("ipv6:127.0.0.1:1", "expected an IPv6 address"), ("a:65536", '"a:65536"'), ("http://a:1", '"http://a:1"')):
            with self.subTest(address), self.assertRaises(edgewise.Error) as caught:
                edgewise.Client(address)
            self.assertEqual((caught.exception.code, caught.exception.field), ("INVALID_ARGUMENT", "address"))
            self.assertIn(words, caught.exception.message)
        with self.assertRaisesRegex(edgewise.Error, 'UNAVAILABLE: address: the host "nowhere.invalid" is not known'):
            edgewise.Client(["127.0.0.1", "nowhere.invalid"])
        result = run_cli([], "models", "--server=a:1,,b:2")
        self.assertEqual(result.returncode, 2)
        self.assertIn('--server is "a:1,,b:2": address has ""; expected HOST:PORT', result.stderr)

    def test_several_are_read_from_a_list_a_text_and_the_environment(self):
        for address in (["127.0.0.1:1", "127.0.0.1:2"], "127.0.0.1:1,127.0.0.1:2", iter(["127.0.0.1:1", "127.0.0.1:2"])):
            with edgewise.Client(address) as client:
                self.assertEqual(client.address, "127.0.0.1:1,127.0.0.1:2")

    def test_a_token_and_certificates_are_of_all_servers(self):
        for address in (["127.0.0.1:1", "10.0.0.1:1"], "dns:///example.org:1"):
            with self.assertRaises(edgewise.Error) as caught:
                edgewise.Client(address, token="a-token")
            self.assertEqual(caught.exception.field, "token")
        with self.assertRaises(edgewise.Error) as caught:
            edgewise.Client(["127.0.0.1:1", "127.0.0.2:1"], tls=True)
        self.assertEqual(caught.exception.field, "tls")
        self.assertIn("server_name is missing", caught.exception.message)


class SpreadTest(ReplicasTest):
    def bytes_of(self, client: edgewise.Client, **options) -> bytes:
        return client.predict("long", LONG_TEXT, **LONG, **options).message.SerializeToString()

    def test_one_of_three_servers_that_is_killed_half_way_changes_no_byte(self):
        servers = self.start(3, "--threads=1")
        client = self.connect(servers)
        with edgewise.Client(servers[0].address, timeout=HANG) as one:
            whole = self.bytes_of(one)
        self.assertEqual(self.bytes_of(client, spread=True), whole)
        before = [answered(server) for server in servers[:2]]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            merged = pool.submit(self.bytes_of, client, spread=True)
            wait_until("its part", lambda: total(servers[2].metrics(), "edgewise_requests_in_flight") > 0)
            servers[2].process.send_signal(signal.SIGKILL)
            self.assertEqual(merged.result(), whole)
        self.assertEqual([answered(server) - was for server, was in zip(servers, before)].count(2), 1)  # its part, again

    def test_the_command_line_spreads_too(self):
        servers = self.start(3)
        asked = ["predict", "--model=sentiment", f"--text={FILM}", "--samples=10", "--seed=3", "--json", "--top_k=2"]
        one = json.loads(run_cli(servers[:1], *asked).stdout)
        before = [answered(server) for server in servers]
        spread = run_cli(servers, *asked, "--spread")
        self.assertEqual(spread.returncode, 0, spread.stderr)
        self.assertEqual(json.loads(spread.stdout)["predictions"], one["predictions"])
        self.assertEqual(json.loads(spread.stdout)["settings"], one["settings"])
        self.assertEqual([answered(server) - was for server, was in zip(servers, before)], [1, 1, 1])
        servers[1].stop()
        self.assertEqual(json.loads(run_cli(servers, *asked, "--spread").stdout)["predictions"], one["predictions"])
        refused = run_cli(servers, *asked, "--spread", "--tolerance=0.1")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("ensemble.tolerance does not go with", refused.stderr)

    def test_parts_of_another_version_are_computed_again(self):
        older = self.start(2)
        shutil.copytree(os.path.join(self.repository, "sentiment", "1"), os.path.join(self.repository, "sentiment", "2"))
        newer = self.start(1)
        for servers, version in ((older + newer, 1), (newer + older, 2)):
            answer = self.connect(servers).predict("sentiment", FILM, samples=9, seed=2, spread=True)
            with edgewise.Client(servers[0].address, timeout=HANG) as client:
                one = client.predict("sentiment", FILM, samples=9, seed=2)
            self.assertEqual((answer.version, one.version), (version, version))
            self.assertEqual(answer.message.SerializeToString(), one.message.SerializeToString())

    def test_a_seed_is_drawn_once_and_answers_name_the_build(self):
        servers = self.start(3)
        client = self.connect(servers)
        answers = [client.predict("sentiment", FILM, samples=5, spread=True) for _ in range(2)]
        self.assertNotEqual(answers[0].seed, answers[1].seed)
        one = client.predict("sentiment", FILM, samples=5, seed=answers[0].seed)
        self.assertEqual(answers[0].message.SerializeToString(), one.message.SerializeToString())
        version = subprocess.run([os.path.join(BIN, "edgewise-server"), "--version"], capture_output=True, text=True,
                                 check=True).stdout
        self.assertRegex(one.response.build, "^[0-9a-f]{40}")
        self.assertIn(f"(build {one.response.build.partition('+')[0]})", version)
        self.assertEqual(answers[0].response.build, one.response.build)

    def test_what_does_not_go_with_it_is_refused_by_name(self):
        client = self.connect(self.start(2))
        for field, options in (("ensemble.tolerance", {"tolerance": 0.1}), ("budget.allow_degraded", {"allow_degraded": True}),
                               ("budget.fit_deadline", {"fit_deadline": True}), ("outputs.graph", {"graph": True}),
                               ("ensemble.samples", {"samples": None})):
            error = self.error_of(lambda: client.predict("sentiment", FILM, spread=True, **{"samples": 4, **options}))
            self.assertEqual((error.code, error.field), ("INVALID_ARGUMENT", field))
        refused = self.error_of(lambda: client.predict("sentiment", FILM, samples=4, max_density=2, spread=True))
        self.assertEqual((refused.code, refused.field), ("INVALID_ARGUMENT", "budget.max_density"))

    def test_servers_that_are_all_gone(self):
        servers = self.start(2)
        client = self.connect(servers)
        for server in servers:
            server.stop()
        error = self.error_of(lambda: client.predict("sentiment", FILM, samples=4, spread=True))
        self.assertEqual(error.code, "UNAVAILABLE")


class MergeTest(unittest.TestCase):
    """The Python client's arithmetic is the server's, of every kind of model, bit for bit."""

    def check(self, repository: str, seeds: range) -> set:
        tasks = set()
        with Server(repository) as server:
            # The same server twice and thrice: parts are merged all the same.
            with edgewise.Client([server.address] * 3, timeout=HANG) as client:
                for model in client.models():
                    if model.state != "READY":
                        continue
                    tasks.add(model.task)
                    for seed in seeds:
                        self.compare(client, model, seed)
        return tasks

    def compare(self, client: edgewise.Client, model: edgewise.Model, seed: int) -> None:
        def one(length: int) -> pb.Sequence:
            if model.feature_size:
                values = [((i * 37 + seed) % 19 - 9) / 7 for i in range(length * model.feature_size)]
                return pb.Sequence(features=pb.Features(rows=length, columns=model.feature_size, values=values))
            ids = [1 + (seed + i * i) % (model.vocab_size - 1) for i in range(length)]
            if model.task == "fill-mask":
                ids[1] = ids[3] = model.mask_token_id
            return pb.Sequence(token_ids=pb.TokenIds(values=ids))
        inputs = [one(min(model.max_tokens, 5 + (seed + i) % 3)) for i in range(2)]
        if model.tokenizer == "hugging-face" and model.task != "fill-mask":
            inputs.append("Two words")
        second = inputs[::-1] if model.task == "pair-classification" else None
        options = {"samples": 7, "seed": seed, "layer_stats": True, "key_degrees": True, "each_sample": seed % 2 == 0,
                   "logits": model.task not in ("regression", "embedding"),
                   "top_k": min(3, len(model.labels) or 3) if model.task in ("causal-lm", "fill-mask", "sequence-classification") else None}
        if model.multi_label:  # a dense model, of which all samples would be alike
            options["override"] = {"windows": 3, "sigma": [0.3]}
            self.multi_label.append(model.name)
        try:
            whole = client.predict_many(model.name, inputs, second=second, **options)
        except edgewise.Error as error:
            self.assertEqual(error.code, "INVALID_ARGUMENT", model.name)  # an input that this model does not take
            self.skipped.append(model.name)
            return
        merged = client.predict_many(model.name, inputs, second=second, spread=True, **options)
        for a, b in zip(merged, whole):
            self.assertEqual(a.message, b.message, model.name)
            self.assertEqual(a.message.SerializeToString(deterministic=True), b.message.SerializeToString(deterministic=True),
                             model.name)
            self.texts_of_tokens += [token for token in a.tokens if token.end]
        self.assertEqual(merged[0].response.settings, whole[0].response.settings)

    def setUp(self):
        self.skipped, self.texts_of_tokens, self.multi_label = [], [], []

    def test_models_of_every_kind(self):
        tasks = self.check(TESTDATA, range(3))
        self.assertLessEqual({"sequence-classification", "token-classification", "pair-classification", "regression",
                              "causal-lm"}, tasks)
        self.assertEqual(self.skipped, [])

    def test_hugging_face_folders(self):
        tasks = self.check(FOLDERS, range(2))
        self.assertLessEqual({"embedding", "fill-mask", "token-classification", "causal-lm"}, tasks)
        self.assertEqual(self.skipped, [])
        self.assertTrue(self.texts_of_tokens, "no token has a place in a text")
        self.assertIn("bert_multi_label", self.multi_label)

    def test_many_values(self):
        """Logarithms of some ten thousand different numbers."""
        with Server(EXAMPLES) as server, edgewise.Client([server.address] * 2, timeout=HANG) as client:
            for text in (FILM, "a dull film", "bad", "the best comedy of all time"):
                for seed in range(25):
                    whole = client.predict("sentiment", text, samples=24, seed=seed)
                    merged = client.predict("sentiment", text, samples=24, seed=seed, spread=True)
                    self.assertEqual(merged.message.SerializeToString(), whole.message.SerializeToString())
            for seed in range(4):
                whole = client.score("shakespeare-ssa", "To be, or not to be: that is the question" * 5, samples=6, seed=seed)
                merged = client.score("shakespeare-ssa", "To be, or not to be: that is the question" * 5, samples=6,
                                      seed=seed, spread=True)
                self.assertEqual(merged.message.SerializeToString(), whole.message.SerializeToString())
            ids = example("duplicates")["token_ids"]
            whole = client.predict("duplicates", ids, samples=16, seed=1)
            self.assertEqual(client.predict("duplicates", ids, samples=16, seed=1, spread=True).message, whole.message)


if __name__ == "__main__":
    unittest.main()
