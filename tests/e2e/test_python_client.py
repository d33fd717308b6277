"""client/python against the server, on Debian's packages without pip: the package is put together as pip would do it.

EDGEWISE_PYTHON_INSTALLED in the environment: tests the `edgewise` that is installed instead.
"""

import concurrent.futures
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from edgewise_process import EXAMPLES, ROOT, TESTDATA, Server, total

sys.path.insert(0, os.path.join(ROOT, "client", "python"))
import compile_protos  # noqa: E402

STAGED = tempfile.TemporaryDirectory()
if "EDGEWISE_PYTHON_INSTALLED" not in os.environ:
    compile_protos.stage(pathlib.Path(STAGED.name))
    sys.path.insert(0, STAGED.name)
import edgewise  # noqa: E402
from edgewise import requests  # noqa: E402
from edgewise.v1 import inference_pb2 as pb  # noqa: E402

FILM = "a warm , funny and moving film"
TOKEN = "a-token-for-the-tests"


def python_of(readme: str) -> list:
    """The ```python blocks of a README."""
    return re.findall(r"^```python\n(.*?)^```$", pathlib.Path(ROOT, readme).read_text(), re.MULTILINE | re.DOTALL)


def example(name: str) -> dict:
    with open(os.path.join(ROOT, "examples", "data", f"{name}.jsonl")) as file:
        return json.loads(file.readline())


class ClientTest(unittest.TestCase):
    """A server of the bundled models and a client."""

    SERVER = (EXAMPLES,)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enter(Server(*cls.SERVER))
        cls.client = cls.enter(edgewise.Client(cls.server.address, timeout=60))

    @classmethod
    def enter(cls, context):
        """As enterClassContext of Python 3.11 does."""
        entered = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        return entered

    def error_of(self, call) -> edgewise.Error:
        with self.assertRaises(edgewise.Error) as caught:
            call()
        return caught.exception


class RequestTest(unittest.TestCase):
    """Every argument is the field that it should be, and no other."""

    def test_predict(self):
        options = {
            "version": 1, "max_density": 0.5, "keep_edges": "probable", "samples": 2, "seed": 3,
            "override": {"windows": 4, "sigma": [0.25], "last_layers": 5},
            "priority": 6, "request_id": "r", "profile": "p", "tolerance": 0.125, "first_sample": 7,
            "allow_degraded": True, "fit_deadline": True, "top_k": 8, "logits": True, "layer_stats": False, "key_degrees": True,
            "each_sample": False, "graph": True, "stride": 9, "dimensions": 10, "truncate": "tail"}
        expected = pb.PredictRequest(
            model="m", version=1, priority=6, request_id="r", profile="p",
            budget=pb.Budget(max_density=0.5, allow_degraded=True, fit_deadline=True, keep=pb.PROBABLE),
            ensemble=pb.Ensemble(samples=2, seed=3, tolerance=0.125, first_sample=7),
            outputs=pb.OutputOptions(top_k=8, logits=True, key_degrees=True, graph=True, stride=9, dimensions=10),
            override=pb.AttentionOverride(kind="ssa", windows=4, sigma=[0.25], last_layers=5),
            inputs=[pb.Input(sequence=pb.Sequence(text=first, truncate=pb.TAIL),
                             second=pb.Sequence(text=second, truncate=pb.TAIL)) for first, second in ("ab", "cd")])
        self.assertEqual(requests.predict("m", ["a", "c"], ["b", "d"], options), expected)
        self.assertEqual(set(options) | {"max_edges", "dense"}, set(requests.PredictOptions.__annotations__))
        for name in ("logits", "layer_stats", "key_degrees", "each_sample", "graph"):
            self.assertEqual(requests.predict("m", [], None, {name: True}),
                             pb.PredictRequest(model="m", outputs=pb.OutputOptions(**{name: True})))
        ids = pb.Sequence(token_ids=pb.TokenIds(values=[1, 2]), truncate=pb.HEAD)
        self.assertEqual(requests.predict("m", [[1, 2]], None, {"max_edges": 0, "dense": True, "truncate": "head"}),
                         pb.PredictRequest(model="m", budget=pb.Budget(max_edges=0), attention=pb.DENSE,
                                           inputs=[pb.Input(sequence=ids)]))
        self.assertEqual(requests.predict("m", [], None, dict.fromkeys(options)), pb.PredictRequest(model="m"))

    def test_generate(self):
        options = {"version": 1, "max_edges": 2, "samples": 3, "seed": 4, "dense": True, "priority": 5, "profile": "p",
                   "request_id": "r", "truncate": "head", "max_new_tokens": 6, "temperature": 0.5, "top_k": 7,
                   "top_p": 0.25, "stop": ["x", "y"], "overflow": "halve"}
        expected = pb.GenerateRequest(
            model="m", version=1, prompt=pb.Sequence(text="p", truncate=pb.HEAD), max_new_tokens=6, temperature=0.5,
            top_k=7, top_p=0.25, stop=["x", "y"], overflow=pb.HALVE, ensemble=pb.Ensemble(samples=3, seed=4),
            budget=pb.Budget(max_edges=2), attention=pb.DENSE, request_id="r", priority=5, profile="p")
        self.assertEqual(requests.generate("m", "p", options), expected)
        self.assertEqual(set(options) | {"max_density", "keep_edges", "override"}, set(requests.GenerateOptions.__annotations__))
        expected = pb.GenerateRequest(model="m", prompt=pb.Sequence(text="p"), max_new_tokens=100, stop=["xy"])
        self.assertEqual(requests.generate("m", "p", {"stop": "xy"}), expected)

    def test_messages(self):
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        expected = pb.GenerateRequest(model="m", max_new_tokens=100, stop=["x"], messages=[
            pb.ChatMessage(role="system", content="Be brief."), pb.ChatMessage(role="user", content="Hello")])
        self.assertEqual(requests.generate("m", None, {"stop": "x"}, said), expected)
        for prompt, messages, options, field in (
                (None, None, {}, "prompt"), ("p", said, {}, "messages"), (None, said, {"truncate": "head"}, "truncate"),
                (None, [{"rôle": "user"}], {}, "messages"), (None, ["Hello"], {}, "messages")):
            with self.assertRaises(edgewise.Error) as caught:
                requests.generate("m", prompt, options, messages)
            self.assertEqual((caught.exception.code, caught.exception.field), ("INVALID_ARGUMENT", field))

    def test_a_message_given_stays_as_it_is(self):
        mine = pb.Sequence(text="a")
        requests.predict("m", [mine], [mine], {"truncate": "head"})
        requests.generate("m", mine, {"truncate": "head"})
        self.assertEqual(mine, pb.Sequence(text="a"))


class PredictTest(ClientTest):
    def test_an_answer_says_what_its_message_says(self):
        answer = self.client.predict("sentiment", FILM, samples=8, seed=7, request_id="mine", top_k=2, logits=True,
                                     version=1)
        message = answer.message
        self.assertEqual((answer.label, answer.label_id), ("positive", 1))
        self.assertEqual(answer.probability, message.probabilities[1])
        self.assertEqual(answer.spread, message.stddev[1])
        self.assertGreater(answer.spread, 0)
        self.assertEqual(answer.probabilities, list(message.probabilities))
        self.assertEqual((answer.edges, answer.pairs, answer.density), (
            message.edges.edges, message.edges.pairs, message.edges.edges / message.edges.pairs))
        self.assertEqual((answer.budget, answer.capped), (0, False))
        self.assertEqual((answer.samples, answer.seed, answer.request_id), (8, 7, "mine"))
        self.assertEqual((answer.entropy, answer.mutual_information), (
            message.predictive_entropy, message.mutual_information))
        self.assertEqual([(top.label, top.probability) for top in answer.top], [
            ("positive", message.probabilities[1]), ("negative", message.probabilities[0])])
        self.assertEqual(len(answer.logits), 2)
        self.assertEqual((answer.model, answer.version), ("sentiment", 1))
        self.assertRegex(answer.device, r"^\w+/\w+/fp32$")
        timing = answer.response.timing
        self.assertEqual(answer.latency, (timing.queue_us / 1e6, timing.compute_us / 1e6, timing.total_us / 1e6))
        self.assertGreaterEqual(answer.latency.total, answer.latency.compute)
        self.assertIn("label='positive'", repr(answer))

    def test_budgets_are_never_exceeded(self):
        free = self.client.predict("sentiment", FILM, samples=8, seed=7)
        cap = free.max_sample_edges - 1
        for options in ({"max_edges": cap}, {"max_density": cap / free.pairs}):
            with self.subTest(**options):
                answer = self.client.predict("sentiment", FILM, samples=8, seed=7, **options)
                self.assertEqual(answer.budget, cap)
                self.assertLessEqual(answer.max_sample_edges, cap)
                self.assertTrue(answer.capped)

    def test_a_seed_gives_the_same_bytes_and_the_drawn_one_comes_back(self):
        first = self.client.predict("sentiment", FILM, samples=4)
        again = self.client.predict("sentiment", FILM, samples=4, seed=first.seed)
        other = self.client.predict("sentiment", FILM, samples=4, seed=first.seed ^ 1)
        self.assertEqual(again.message.SerializeToString(), first.message.SerializeToString())
        self.assertNotEqual(other.message.SerializeToString(), first.message.SerializeToString())
        self.assertEqual(self.client.predict("sentiment", FILM, seed=0).seed, 0)

    def test_arguments_reach_the_request(self):
        one = self.client.predict("sentiment", FILM, samples=2, each_sample=True, layer_stats=True, key_degrees=True)
        self.assertEqual(len(one.message.sample_outputs), 2)
        self.assertGreater(one.message.edges.expected_edges, 0)
        self.assertTrue(one.message.edges.layers[0].heads[0].key_degrees)
        self.assertEqual(self.client.predict("sentiment", FILM, dense=True).density, 1)
        self.assertEqual(self.client.predict("sentiment", FILM, samples=64, tolerance=0.5).samples, 4)
        long = " ".join(["film"] * 100)
        for side in ("head", "tail"):
            self.assertGreater(self.client.predict("sentiment", long, truncate=side).truncated_tokens, 0)
        self.assertEqual(self.error_of(lambda: self.client.predict("sentiment", long)).code, "INVALID_ARGUMENT")
        # None counts as left out
        self.assertEqual(self.client.predict("sentiment", FILM, samples=None, max_edges=None, top_k=None).samples, 1)

    def test_token_ids_and_their_labels(self):
        given = example("duplicates")
        answer = self.client.predict("duplicates", given["token_ids"])
        self.assertEqual(len(answer.tokens), len(given["token_ids"]))
        self.assertTrue(math.isnan(answer.probability))
        for token in answer.tokens:
            self.assertEqual(token.probability, max(token.probabilities))
            self.assertEqual(token.label, ("unique", "duplicate")[token.label_id])
        self.assertEqual({token.label for token in answer.tokens}, {"unique", "duplicate"})

    def test_rows_of_features(self):
        rows = example("shapes")["features"]
        answer = self.client.predict("shapes", rows, seed=1)
        one = pb.Sequence(features=pb.Features(rows=len(rows), columns=len(rows[0]), values=sum(rows, [])))
        for same in (one, pb.Input(sequence=one), tuple(map(tuple, rows))):
            again = self.client.predict("shapes", same, seed=1)
            self.assertEqual(again.message.SerializeToString(), answer.message.SerializeToString())
        self.assertEqual(answer.probability, max(answer.probabilities))

    def test_several_inputs_are_answered_in_order(self):
        texts = [FILM, "a dull film", "a bad , boring movie", "the best comedy of all time"]
        together = self.client.predict_many("sentiment", texts, seed=3, samples=2)
        alone = [self.client.predict("sentiment", text, seed=3, samples=2) for text in texts]
        self.assertEqual([one.message.SerializeToString() for one in together],
                         [one.message.SerializeToString() for one in alone])
        self.assertEqual(len({one.message.SerializeToString() for one in together}), len(texts))

    def test_threads_share_a_client(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = list(pool.map(lambda seed: self.client.predict("sentiment", FILM, seed=seed), range(64)))
        self.assertEqual([answer.seed for answer in asked], list(range(64)))


class OtherModelsTest(ClientTest):
    SERVER = (TESTDATA, "--allow_graphs")

    def test_pairs(self):
        first, second = [3, 5, 7], [2, 4, 6, 1, 3]
        answer = self.client.predict("dense-pair", first, second=second)
        message = pb.Input(sequence=pb.Sequence(token_ids=pb.TokenIds(values=first)),
                           second=pb.Sequence(token_ids=pb.TokenIds(values=second)))
        self.assertEqual(self.client.predict("dense-pair", message).probabilities, answer.probabilities)
        many = self.client.predict_many("dense-pair", [first, second], second=[second, first])
        self.assertEqual(many[0].probabilities, answer.probabilities)
        self.assertNotEqual(many[1].probabilities, answer.probabilities)
        error = self.error_of(lambda: self.client.predict_many("dense-pair", [first, second], second=[second]))
        self.assertEqual((error.message, error.field), ("second has 1 entries for 2 inputs", "second"))

    def test_a_regression_has_values(self):
        answer = self.client.predict("regression", [1, 2, 3], samples=8)
        self.assertEqual(answer.values, list(answer.message.values))
        self.assertEqual(answer.spread, answer.message.stddev[0])
        self.assertTrue(math.isnan(answer.probability))
        self.assertIn("values=[", repr(answer))

    def test_an_override_thins_a_dense_model(self):
        ids = list(range(1, 13))
        for override in ({"windows": 4, "sigma": [0.1]}, {"keep": 4}, {"kind": "ssa", "keep": 4},
                         {"window_tokens": 3, "sigma": [1.5]}, {"pattern": "local", "block_size": 2, "width": 0}):
            self.assertLess(self.client.predict("dense", ids, override=override).density, 1)
        self.assertEqual(self.error_of(lambda: self.client.predict("dense", ids, override={"kind": "no"})).field,
                         "override.kind")

    def test_a_graph_given_back_gives_the_same(self):
        answer = self.client.predict("sbm", [1, 2, 3, 4, 5], graph=True, seed=5)
        ids = pb.Sequence(token_ids=pb.TokenIds(values=[1, 2, 3, 4, 5]))
        given = pb.Input(sequence=ids, graph=answer.message.graph)
        self.assertEqual(self.client.predict("sbm", given, seed=5).probabilities, answer.probabilities)


class LanguageTest(ClientTest):
    def generate(self, **options):
        return self.client.generate("shakespeare-ssa", "ROMEO:", **options)

    def test_tokens_come_one_by_one_and_a_seed_repeats_them(self):
        tokens = self.generate(max_new_tokens=20, temperature=1.0, seed=4, samples=2)
        self.assertIs(iter(tokens), tokens)
        self.assertIsNone(tokens.seed)
        first = next(tokens)
        device = tokens.device
        drawn = [first, next(tokens)]
        self.assertEqual((tokens.seed, tokens.device, tokens.finish_reason, tokens.latency), (4, device, None, None))
        drawn += tokens
        self.assertEqual(len(drawn), 20)
        self.assertEqual((tokens.finish_reason, tokens.message.generated_tokens), ("length", 20))
        self.assertEqual(tokens.latency.compute, tokens.message.timing.compute_us / 1e6)
        self.assertEqual(device, tokens.message.device)
        self.assertEqual(len("".join(token.text for token in drawn)), 20)
        for token in drawn:
            self.assertEqual((token.token_id, token.edges, token.density), (
                token.message.token_id, token.message.edges.edges, token.message.edges.density))
            self.assertLess(token.log_probability, 0)
        again = self.generate(max_new_tokens=20, temperature=1.0, seed=4, samples=2)
        self.assertEqual([token.token_id for token in again], [token.token_id for token in drawn])
        other = self.generate(max_new_tokens=20, temperature=1.0, seed=5, samples=2)
        self.assertNotEqual([token.token_id for token in other], [token.token_id for token in drawn])

    def test_100_tokens_unless_told(self):
        self.assertEqual(len(list(self.generate())), 100)

    def test_a_stop_string_and_a_budget(self):
        with self.generate(max_new_tokens=500, stop=" ") as tokens:
            text = "".join(token.text for token in tokens)
        self.assertEqual(tokens.finish_reason, "stop")
        self.assertNotIn(" ", text)
        free = max(token.max_sample_edges for token in self.generate(max_new_tokens=5))
        capped = list(self.generate(max_new_tokens=5, max_edges=free - 1))
        self.assertEqual([token.budget for token in capped], [free - 1] * 5)
        self.assertTrue(all(token.max_sample_edges < free for token in capped))

    def test_one_that_is_not_read_to_its_end_is_cancelled(self):
        def leave_the_block():
            with self.generate(max_new_tokens=4000) as tokens:
                next(tokens)

        def close():
            tokens = self.generate(max_new_tokens=4000)
            next(tokens)
            tokens.close()
            self.assertLess(len(list(tokens)), 3999)  # what had come before; no error

        def drop():
            for _ in self.generate(max_new_tokens=4000):
                break

        def close_from_another_thread():
            tokens = self.generate(max_new_tokens=4000)
            next(tokens)
            closer = threading.Thread(target=tokens.close)
            closer.start()
            for _ in tokens:
                pass
            closer.join()
            self.assertIsNone(tokens.finish_reason)

        for number, leave in enumerate((leave_the_block, close, drop, close_from_another_thread), self.ended()[0] + 1):
            with self.subTest(leave.__name__):
                leave()
                deadline = time.monotonic() + 100
                while (ended := self.ended()) != (number, 0):
                    self.assertLess(time.monotonic(), deadline, f"cancelled and running: {ended}")
                    time.sleep(0.01)

    def ended(self) -> tuple:
        """Generations that were cancelled, and that run. One that nobody cancels counts as OK when it ends."""
        metrics = self.server.metrics()
        return (int(total(metrics, "edgewise_generations_total", model="shakespeare-ssa", code="CANCELLED")),
                int(total(metrics, "edgewise_generations_running", model="shakespeare-ssa")))

    def test_a_timeout_ends_it(self):
        error = self.error_of(lambda: list(self.generate(max_new_tokens=4000, timeout=0.1)))
        self.assertEqual(error.code, "DEADLINE_EXCEEDED")

    def test_errors_come_with_the_first_token(self):
        error = self.error_of(lambda: next(self.client.generate("sentiment", "a")))
        self.assertEqual((error.code, error.field), ("INVALID_ARGUMENT", "model"))

    def test_a_score_is_the_likelihood_of_the_text(self):
        text = "To be, or not to be: that is the question"
        score = self.client.score("shakespeare-ssa", text, samples=2, seed=1)
        self.assertEqual(score.tokens, len(text) - 1)
        self.assertAlmostEqual(score.perplexity, math.exp(-score.log_likelihood / score.tokens), places=9)
        self.assertEqual((score.samples, score.seed), (2, 1))
        worse = self.client.score("shakespeare-ssa", text[::-1], samples=2, seed=1)
        self.assertGreater(worse.perplexity, score.perplexity)
        long = text * 20
        dense = self.client.score("shakespeare-ssa", long, stride=16)
        self.assertEqual(dense.tokens, len(long) - 1)
        self.assertGreater(dense.pairs, self.client.score("shakespeare-ssa", long, stride=127).pairs)
        error = self.error_of(lambda: self.client.score("sentiment", FILM))
        self.assertEqual((str(error), error.field),
                         ('INVALID_ARGUMENT: model "sentiment" is not a language model', "model"))


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
        with edgewise.Client(self.server.address, timeout=0.01) as client:
            def ask(**options):
                return client.predict("long", "the " * 500, samples=64, truncate="tail", **options)
            self.assertEqual(self.error_of(ask).code, "DEADLINE_EXCEEDED")
            self.assertEqual(ask(timeout=60).samples, 64)


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
        block, = python_of("client/python/README.md")
        output = self.run_python(block)
        self.assertRegex(output, r"^positive 0\.\d+ ")
        self.assertIn("'sentiment'", output)

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
