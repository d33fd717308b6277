"""What docs/server.md and the proto promise of every prediction, as a client sees it."""

import copy
import json
import math
import re
import unittest

import numpy as np

from edgewise_process import TESTDATA, Server, wait_until
from promises import KINDS, LANGUAGE, SEED, Counters, Kind, PromisesTest, least_of, of_bytes, without_budget
from rpc import Refused, Rpc, pb


class AnswersTest(PromisesTest):
    def test_answers_are_those_of_the_golden_cases(self):
        for kind in KINDS:
            if kind.override:
                continue
            for number, (entry, one) in enumerate(zip(kind.golden, kind.inputs)):
                with self.subTest(kind=kind.name, input=number):
                    request = kind.request(copy.deepcopy(one), outputs=kind.outputs(each_sample=True))
                    if "seed" in entry:
                        request.ensemble.seed, request.ensemble.first_sample = entry["seed"], entry["sample"]
                    elif "graph" in entry:
                        for layer in entry["graph"]["layers"]:
                            request.inputs[0].graph.layers.add(heads=[pb.Graph.Head(**head) for head in layer["heads"]])
                    answer = self.ask(request)
                    if answer.tokens:
                        for token, expected in zip(answer.tokens, entry["logits"], strict=True):
                            self.assertEqual(token.pad, expected is None)
                            np.testing.assert_allclose(token.logits, expected or [], atol=1e-4)
                    else:
                        np.testing.assert_allclose(answer.logits or answer.values, entry["logits"], atol=1e-4)
                    if kind.language:
                        expected = entry["log_probabilities"]
                        scored = answer.sample_outputs[0].token_probabilities
                        np.testing.assert_allclose(np.log(scored), expected, atol=1e-4)
                        self.assertAlmostEqual(answer.log_likelihood, sum(expected), delta=1e-3)

    def test_a_cap_is_never_exceeded_and_the_least_is_told(self):
        for check, kind, one in self.cases():
            with check:
                def capped(edges: int):
                    return self.ask(kind.request(one, samples=3, budget=pb.Budget(max_edges=edges),
                                                 outputs=kind.outputs(each_sample=True)))

                free = self.ask(kind.request(one, samples=3, outputs=kind.outputs(each_sample=True)))
                least, most = self.least_edges(capped), free.edges.max_sample_edges
                if kind.config["attention"] == {"kind": "dense"} and not kind.override:
                    self.assertEqual(least, free.edges.pairs)
                for cap in {least, least + 1, (least + most) // 2, most - 1, most, free.edges.pairs, 1 << 40}:
                    if cap < least:
                        continue
                    answer = capped(cap)
                    self.assertEqual(answer.edges.budget, cap)
                    self.assertLessEqual(answer.edges.max_sample_edges, cap)
                    costs = [sample.edges for sample in answer.sample_outputs]
                    self.assertEqual((max(costs), sum(costs) / 3), (answer.edges.max_sample_edges, answer.edges.edges))
                    if not answer.edges.capped:
                        self.assertEqual(without_budget(answer), without_budget(free), f"cap {cap}")
                self.assertFalse(capped(1 << 40).edges.capped)
                if most > least:
                    self.assertTrue(capped(most - 1).edges.capped)

    def test_expected_edges_are_the_edges_but_for_sbm(self):
        kinds = [kind for kind in KINDS if "sbm" not in json.dumps(kind.config["attention"])]
        for check, kind, one in self.cases(kinds):
            with check:
                free = self.ask(kind.request(one, samples=3, outputs=kind.outputs(each_sample=True)))
                answers = [free]
                try:
                    half = pb.Budget(max_edges=max(1, free.edges.max_sample_edges // 2))
                    answers.append(self.ask(kind.request(one, samples=3, outputs=kind.outputs(), budget=half)))
                except Refused:
                    pass
                for answer in answers:
                    self.assertEqual(answer.edges.expected_edges, answer.edges.edges)
                    for head in (head for layer in answer.edges.layers for head in layer.heads):
                        self.assertEqual(head.expected, head.edges)

    def test_a_density_is_the_cap_it_stands_for(self):
        for check, kind, one in self.cases(inputs=slice(2)):
            with check:
                def capped(**cap):
                    return self.ask(kind.request(one, samples=2, budget=pb.Budget(**cap)))

                try:
                    answer = capped(max_density=0.37)
                except Refused as refused:
                    least = least_of(refused)
                    pairs = int(re.search(r"of the (\d+) pairs", str(refused)).group(1))
                    self.assertLess(math.floor(0.37 * pairs), least)
                    answer = capped(max_density=least / pairs)
                    self.assertEqual(answer.edges.budget, least)
                self.assertLessEqual(answer.edges.max_sample_edges, answer.edges.budget)
                self.assertEqual(of_bytes(capped(max_edges=answer.edges.budget)), of_bytes(answer))

    def test_an_answer_is_the_same_alone_among_strangers_and_after_a_restart(self):
        requests = [kind.request(one, samples=2, outputs=kind.outputs(), request_id=f"{k} {i}")
                    for k, kind in enumerate(KINDS) for i, one in enumerate(kind.inputs)]
        alone = [self.rpc.predict(request) for request in requests]
        expected = [of_bytes(answer.predictions[0]) for answer in alone]

        def check(answers: list, how: str) -> None:
            for request, answer, wanted in zip(requests, answers, expected, strict=True):
                kind = KINDS[int(request.request_id.split()[0])]
                with self.subTest(kind=kind.name, request=request.request_id, how=how):
                    self.assertEqual(of_bytes(answer.predictions[0]), wanted)
                    self.assertEqual(answer.seed, SEED)

        check(self.rpc.predict_together(requests), "all at once")
        streamed = self.rpc.predict_stream(requests)
        check([streamed[request.request_id] for request in requests], "on one stream")
        for k, kind in enumerate(KINDS):
            with self.subTest(kind=kind.name, how="inputs of one request"):
                together = self.rpc.predict(kind.request(*reversed(kind.inputs), samples=2, outputs=kind.outputs()))
                own = [e for request, e in zip(requests, expected) if request.request_id.split()[0] == str(k)]
                self.assertEqual([of_bytes(prediction) for prediction in reversed(together.predictions)], own)
        with Server(TESTDATA, "--threads=1") as other:
            rpc = Rpc(other)
            check([rpc.predict(request) for request in requests], "after a restart")
            rpc.close()

    def test_a_graph_given_back_gives_the_same_bytes(self):
        for check, kind, one in self.cases():
            with check:
                budgets = [None]
                try:
                    self.ask(kind.request(one, budget=pb.Budget(max_density=0.6)))
                    budgets.append(pb.Budget(max_density=0.6))
                except Refused:
                    pass
                for budget in budgets:
                    drawn = self.ask(kind.request(one, budget=budget, outputs=kind.outputs(graph=True)))
                    self.check_graph(kind, drawn)
                    again = kind.request(copy.deepcopy(one), outputs=kind.outputs(graph=True), seed=SEED + 1)
                    again.ClearField("override")
                    again.inputs[0].graph.CopyFrom(drawn.graph)
                    given = self.ask(again)
                    for answer in (drawn, given):
                        answer.edges.ClearField("budget")
                        answer.edges.ClearField("capped")
                        answer.edges.ClearField("expected_edges")
                        for layer in answer.edges.layers:
                            for head in layer.heads:
                                head.ClearField("expected")
                    self.assertEqual(of_bytes(given), of_bytes(drawn))

    def check_graph(self, kind: Kind, answer) -> None:
        edges = 0
        for layer in answer.graph.layers:
            for head in layer.heads:
                offsets, keys = np.array(head.row_offsets), np.array(head.keys, dtype=np.int64)
                rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
                edges += len(keys)
                self.assertTrue(np.all((np.diff(keys) > 0) | (np.diff(rows) > 0)))  # keys of a row ascend
                if kind.causal:
                    self.assertTrue(np.all(keys <= rows))
                sums = np.bincount(rows, weights=np.array(head.weights), minlength=len(offsets) - 1)
                np.testing.assert_allclose(sums[np.diff(offsets) > 0], 1.0, atol=1e-5)
        self.assertEqual(edges, answer.edges.edges)

    def test_dense_attends_to_every_pair_and_draws_nothing(self):
        for check, kind, one in self.cases():
            with check:
                request = kind.request(one, attention=pb.DENSE, samples=2, outputs=kind.outputs())
                request.ClearField("override")
                answer = self.ask(request)
                self.assertEqual((answer.edges.density, answer.edges.edges), (1.0, answer.edges.pairs))
                self.assertEqual(answer.edges.isolated_queries, 0)
                valid = self.valid(kind, one)
                pairs = sum(n * (n + 1) // 2 if kind.causal else n * n for n in valid)
                self.assertEqual(answer.edges.pairs, pairs * kind.layers * kind.config["num_attention_heads"])
                request.ensemble.seed += 1
                self.assertEqual(of_bytes(self.ask(request)), of_bytes(answer))
                self.assertEqual(max(answer.stddev, default=0.0), 0.0)
                default = self.ask(kind.request(one, samples=2, outputs=kind.outputs()))
                self.assertEqual(default.edges.pairs, answer.edges.pairs)
                if kind.config["attention"] == {"kind": "dense"} and not kind.override:
                    self.assertEqual(of_bytes(default), of_bytes(answer))
                if default.edges.density < 1.0:
                    self.assertNotEqual(of_bytes(default), of_bytes(answer))

    def valid(self, kind: Kind, one) -> list:
        """How many tokens attend, the CLS token included, of each sequence of an input or window of its text."""
        if one.sequence.HasField("features"):
            return [one.sequence.features.rows]
        sequences = [sequence for sequence in (one.sequence, one.second) if sequence.HasField("token_ids")]
        ids = [list(sequence.token_ids.values) for sequence in sequences]
        most, pad = kind.config["max_position_embeddings"], kind.config.get("pad_token_id", 0)
        if kind.language and len(ids[0]) > most:
            ends = [min(end, len(ids[0])) for end in range(most, len(ids[0]) + most // 2, most // 2)]
            ids = [ids[0][end - most:end] for end in ends]
        if kind.config.get("pooling", {}).get("kind") == "cls":
            ids = [[kind.config["cls_token_id"], *sequence][:most] for sequence in ids]
        return [sum(i != pad for i in sequence) for sequence in ids]

    def test_an_override_takes_its_share_of_a_dense_model(self):
        for check, kind, one in self.cases([kind for kind in KINDS if kind.override]):
            with check:
                answer = self.ask(kind.request(one, samples=4))
                again = self.ask(kind.request(one, samples=4))
                other = self.ask(kind.request(one, samples=4, seed=SEED + 1))
                self.assertEqual(of_bytes(again), of_bytes(answer))
                dense = self.ask(pb.PredictRequest(model=kind.model, inputs=[one]))
                self.assertEqual(answer.edges.pairs, dense.edges.pairs)
                tokens = max(self.valid(kind, one))
                if tokens >= 10:
                    self.assertLess(answer.edges.density, 1.0)
                    drawn = "pattern" not in kind.override and any(kind.override.get("sigma", [1.0]))
                    self.assertEqual(of_bytes(other) != of_bytes(answer), drawn)
                elif tokens == 1 and not kind.causal:
                    self.assertEqual(answer.edges.density, 1.0)

    def test_the_windows_of_a_long_text_score_every_token_once(self):
        for kind in LANGUAGE:
            for stride in (0, 1, 20, 47):
                with self.subTest(kind=kind.name, stride=stride):
                    outputs = pb.OutputOptions(each_sample=True, stride=stride)
                    answer = self.ask(kind.request(kind.inputs[-1], samples=2, outputs=outputs))
                    self.assertEqual(answer.scored_tokens, 109)
                    self.assertEqual([len(sample.token_probabilities) for sample in answer.sample_outputs], [109] * 2)

    def cancel_one(self, kind) -> None:
        """Cancels a call that runs. One that ends before this thread sees it counts as OK, and another is made."""
        for _ in range(20):
            call = self.rpc.service.Predict.future(kind.request(*[kind.inputs[-1]] * 256, samples=256), timeout=60)
            running = f'requests_in_flight{{model="{kind.model}",version="1"}} 1\n'
            while not call.done() and running not in self.server.metrics():
                pass
            if call.cancel():
                return
        self.fail("its calls end too soon to be cancelled")

    def test_a_client_that_goes_leaves_a_healthy_server(self):
        before, gone = Counters(self.server.metrics()), []
        for kind in KINDS:
            with self.subTest(kind=kind.name):
                small = kind.request(kind.inputs[0], samples=3, outputs=pb.OutputOptions(each_sample=True))
                alone = self.ask(small)
                if len({of_bytes(sample) for sample in alone.sample_outputs}) == 1:
                    continue  # nothing is drawn: no request is long
                self.cancel_one(kind)
                self.assertEqual(of_bytes(self.ask(small)), of_bytes(alone))
                gone.append(kind.model)
        self.assertGreater(len(gone), 5)
        wait_until("no request in flight",
                   lambda: Counters(self.server.metrics()).of("edgewise_requests_in_flight") == 0)
        now = Counters(self.server.metrics())
        for model in set(gone):
            of_model = {"model": model, "code": "CANCELLED"}
            moved = now.of("edgewise_requests_total", **of_model) - before.of("edgewise_requests_total", **of_model)
            self.assertEqual(moved, gone.count(model), model)
        wasted = "edgewise_cancelled_compute_seconds_total"
        self.assertGreater(now.of(wasted), before.of(wasted))


if __name__ == "__main__":
    unittest.main()
