"""Requests and answers of client/python, against the server."""

import concurrent.futures
import math
import threading
import time
import unittest

from edgewise_process import TESTDATA, total, wait_until
from python_client import FILM, ClientTest, edgewise, example, pb, requests


class RequestTest(unittest.TestCase):
    """Every argument is the field that it should be, and no other."""

    def test_predict(self):
        options = {
            "version": 1, "max_density": 0.5, "keep_edges": "probable", "samples": 2, "seed": 3,
            "override": {"windows": 4, "sigma": [0.25], "last_layers": 5},
            "priority": 6, "request_id": "r", "profile": "p", "tolerance": 0.125, "first_sample": 7,
            "allow_degraded": True, "fit_deadline": True, "top_k": 8, "logits": True, "layer_stats": False, "key_degrees": True,
            "each_sample": False, "graph": True, "stride": 9, "dimensions": 10, "token_embeddings": True, "truncate": "tail",
            "prompt_name": "query"}
        expected = pb.PredictRequest(
            model="m", version=1, priority=6, request_id="r", profile="p",
            budget=pb.Budget(max_density=0.5, allow_degraded=True, fit_deadline=True, keep=pb.PROBABLE),
            ensemble=pb.Ensemble(samples=2, seed=3, tolerance=0.125, first_sample=7),
            outputs=pb.OutputOptions(top_k=8, logits=True, key_degrees=True, graph=True, stride=9, dimensions=10,
                                     token_embeddings=True),
            override=pb.AttentionOverride(kind="ssa", windows=4, sigma=[0.25], last_layers=5),
            inputs=[pb.Input(sequence=pb.Sequence(text=first, truncate=pb.TAIL, prompt_name="query"),
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
                   "top_p": 0.25, "stop": ["x", "y"], "overflow": "halve", "min_p": 0.125, "presence_penalty": 0.5,
                   "frequency_penalty": -0.5, "repetition_penalty": 1.5, "alternatives": 8}
        expected = pb.GenerateRequest(
            model="m", version=1, prompt=pb.Sequence(text="p", truncate=pb.HEAD), max_new_tokens=6, temperature=0.5,
            min_p=0.125, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.5, alternatives=8,
            top_k=7, top_p=0.25, stop=["x", "y"], overflow=pb.HALVE, ensemble=pb.Ensemble(samples=3, seed=4),
            budget=pb.Budget(max_edges=2), attention=pb.DENSE, request_id="r", priority=5, profile="p")
        self.assertEqual(requests.generate("m", "p", options), expected)
        self.assertEqual(set(options) | {"max_density", "keep_edges", "override", "template_arguments"},
                         set(requests.GenerateOptions.__annotations__))
        expected = pb.GenerateRequest(model="m", prompt=pb.Sequence(text="p"), max_new_tokens=100, stop=["xy"])
        self.assertEqual(requests.generate("m", "p", {"stop": "xy"}), expected)

    def test_messages(self):
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        expected = pb.GenerateRequest(model="m", max_new_tokens=100, stop=["x"], messages=[
            pb.ChatMessage(role="system", content="Be brief."), pb.ChatMessage(role="user", content="Hello")])
        self.assertEqual(requests.generate("m", None, {"stop": "x"}, said), expected)
        given = {"template_arguments": {"tools": [{"b": 1, "a": "é"}], "enable_thinking": False}}
        expected.template_arguments = '{"tools": [{"b": 1, "a": "é"}], "enable_thinking": false}'
        self.assertEqual(requests.generate("m", None, {"stop": "x", **given}, said), expected)
        for prompt, messages, options, field in (
                (None, None, {}, "prompt"), ("p", said, {}, "messages"), (None, said, {"truncate": "head"}, "truncate"),
                (None, [{"rôle": "user"}], {}, "messages"), (None, ["Hello"], {}, "messages"),
                ("p", None, {"template_arguments": {}}, "template_arguments"),
                (None, said, {"template_arguments": [1]}, "template_arguments"),
                (None, said, {"template_arguments": {"a": {1}}}, "template_arguments"),
                (None, said, {"template_arguments": {"a": float("nan")}}, "template_arguments"),
                (None, said, {"template_arguments": {"a": "\ud800"}}, "template_arguments")):
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

        wait_until("those of other tests to end", lambda: self.ended()[1] == 0)
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
        error = self.error_of(lambda: list(self.generate(max_new_tokens=4000, timeout=2)))
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


if __name__ == "__main__":
    unittest.main()
