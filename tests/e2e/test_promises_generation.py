"""What docs/server.md and the proto promise of every generation, as a client sees it; and that the metrics count
predictions and generations exactly."""

import unittest

import numpy as np

from edgewise_process import TESTDATA, Server, wait_until
from promises import KINDS, LANGUAGE, SEED, Counters, Kind, PromisesTest, without_timing
from rpc import Refused, Rpc, pb


class GenerationsTest(PromisesTest):
    def prompts(self):
        """(subTest, kind, prompt) of all language models: prompts of one token, some, and the whole context."""
        return [(check, kind, one.sequence) for check, kind, one in self.cases(LANGUAGE)]

    def test_a_seed_fixes_the_text_alone_and_among_others(self):
        prompts = self.prompts()
        requests = [kind.generation(prompt, samples=2, temperature=1.0) for _, kind, prompt in prompts]
        alone = [self.rpc.generate(request) for request in requests]
        together = self.rpc.generate_together(requests)
        differ = 0
        for (check, kind, prompt), request, first, again in zip(prompts, requests, alone, together):
            with check:
                self.assertEqual(len(first), 8)
                self.assertEqual([message.done for message in first], [False] * 7 + [True])
                self.assertEqual(without_timing(again), without_timing(first))
                self.assertEqual({message.seed for message in (first[0], first[-1])}, {SEED})
                request.ensemble.seed += 1
                differ += [m.token_id for m in self.rpc.generate(request)] != [m.token_id for m in first]
        self.assertGreater(differ, len(prompts) // 2)
        with Server(TESTDATA, "--threads=1", "--max_generations=1") as other:
            rpc = Rpc(other)
            for (check, kind, prompt), first in zip(self.prompts(), alone):
                with check:
                    again = rpc.generate(kind.generation(prompt, samples=2, temperature=1.0))
                    self.assertEqual(without_timing(again), without_timing(first))
            rpc.close()

    def test_tokens_come_from_the_samples_that_predict_draws(self):
        """Sample i of a generation is sample i of a prediction with the same seed, in every row; beyond the context it
        is that of a prediction for the last tokens."""
        for check, kind, prompt in self.prompts():
            with check:
                self.check_tokens(kind, prompt, dense=False)
                self.check_tokens(kind, prompt, dense=True)

    def check_tokens(self, kind: Kind, prompt, dense: bool) -> None:
        ids = list(prompt.token_ids.values)
        while ids[-1] == kind.config.get("pad_token_id", 0):
            ids.pop()
        for message in self.rpc.generate(self.attending(dense, kind.generation(prompt, samples=3))):
            text = pb.Sequence(token_ids=pb.TokenIds(values=ids), truncate=pb.HEAD)
            next_token = self.ask(self.attending(dense, kind.request(pb.Input(sequence=text), samples=3)))
            probability = next_token.probabilities[message.token_id]
            self.assertAlmostEqual(np.exp(message.log_probability) / probability, 1.0, delta=2e-4)
            others = [p for i, p in enumerate(next_token.probabilities) if i != kind.config.get("pad_token_id", 0)]
            self.assertGreater(probability, max(others) * (1 - 4e-4))  # the most probable, but never a pad
            if dense:
                self.assertEqual((message.edges.density, message.edges.edges), (1.0, message.edges.pairs))
            ids.append(message.token_id)

    def attending(self, dense: bool, request):
        if dense:
            request.ClearField("override")
            request.attention = pb.DENSE
        return request

    def test_a_cap_holds_for_every_row_and_the_least_is_told(self):
        for check, kind, prompt in self.prompts():
            with check:
                def capped(edges: int):
                    return self.rpc.generate(kind.generation(prompt, samples=2, budget=pb.Budget(max_edges=edges)))

                free = self.rpc.generate(kind.generation(prompt, samples=2))
                least = self.least_edges(capped)
                most = max(message.edges.max_sample_edges for message in free)
                for cap in {max(least, edges) for edges in (least, (least + most) // 2, most - 1, most)}:
                    for message in capped(cap):
                        self.assertEqual(message.edges.budget, cap)
                        self.assertLessEqual(message.edges.max_sample_edges, cap)
                wide = capped(1 << 40)
                self.assertFalse(any(message.edges.capped for message in wide))
                for message in wide:
                    message.edges.ClearField("budget")
                    if message.HasField("settings"):
                        message.settings.ClearField("budget")
                self.assertEqual(without_timing(wide), without_timing(free))

    def test_a_client_that_goes_leaves_a_healthy_server(self):
        for kind in LANGUAGE:
            with self.subTest(kind=kind.name):
                before = self.counters(kind)
                call = self.rpc.service.Generate(kind.generation(kind.inputs[-1].sequence, count=4096, samples=16,
                                                                 temperature=1.0), timeout=60)
                for _ in range(3):
                    next(call)
                call.cancel()
                pages = []  # the last one is the first that shows the end
                wait_until("the generation to end", lambda: pages.append(self.counters(kind)) or
                           pages[-1][:2] == (before[0] + 1, 0))
                self.assertGreaterEqual(pages[-1][2], before[2] + 3)
                self.assertGreater(pages[-1][3], before[3])
                for page in pages[:-1]:
                    self.assertEqual((page[0], page[3]), (before[0], before[3]), "part of the end")
                self.assertEqual(len(self.rpc.generate(kind.generation(kind.inputs[-1].sequence))), 8)
        self.assertEqual(self.server.cli("health").returncode, 0)

    def counters(self, kind: Kind) -> tuple:
        """Generations of the model that were cancelled, that run; tokens generated; seconds that were for nothing."""
        now = Counters(self.server.metrics())
        return (now.of("edgewise_generations_total", model=kind.model, code="CANCELLED"),
                now.of("edgewise_generations_running", model=kind.model),
                now.of("edgewise_generated_tokens_total", model=kind.model),
                now.of("edgewise_cancelled_compute_seconds_total", model=kind.model))


class MetricsTest(PromisesTest):
    def test_counters_move_by_exactly_the_requests_made(self):
        expected = {}

        def count(of: Kind, name: str, value: float, **labels: str) -> None:
            key = (name, of.model, tuple(sorted(labels.items())))
            expected[key] = expected.get(key, 0.0) + value

        before = Counters(self.server.metrics())
        for kind in KINDS:
            for one in kind.inputs[:2]:
                for budget in (None, pb.Budget(max_edges=1 << 30), pb.Budget(max_density=0.5), pb.Budget(max_edges=1)):
                    self.predict_counted(kind, kind.request(one, one, samples=3, budget=budget), budget is not None,
                                         count)
                if kind.language:
                    self.generate_counted(kind, kind.generation(one.sequence, samples=2), count)
        after = Counters(self.server.metrics())
        for (name, model, labels), value in expected.items():
            with self.subTest(metric=name, model=model, **dict(labels)):
                moved = after.of(name, model=model, **dict(labels)) - before.of(name, model=model, **dict(labels))
                self.assertAlmostEqual(moved, value, delta=1e-9 * abs(value))

    def predict_counted(self, kind: Kind, request, budget: bool, count) -> None:
        try:
            answer = self.rpc.predict(request)
        except Refused:
            count(kind, "edgewise_requests_total", 1, code="INVALID_ARGUMENT")
            count(kind, "edgewise_rejections_total", 1, reason="budget")
            return
        count(kind, "edgewise_requests_total", 1, code="OK")
        count(kind, "edgewise_edge_budget_requests_total", int(budget))
        count(kind, "edgewise_items_total", 2)
        count(kind, "edgewise_input_density_ratio_count", 2)
        count(kind, "edgewise_ensemble_samples_count", 2)
        count(kind, "edgewise_ensemble_samples_sum", 6)
        for prediction in answer.predictions:
            edges = prediction.edges
            count(kind, "edgewise_edge_budget_capped_total", edges.capped)
            count(kind, "edgewise_input_density_ratio_sum", edges.density)
            count(kind, "edgewise_attention_edges_total", edges.edges * 3)
            count(kind, "edgewise_attention_pairs_total", edges.pairs * 3)
            count(kind, "edgewise_isolated_queries_total", edges.isolated_queries * 3)

    def generate_counted(self, kind: Kind, request, count) -> None:
        messages = self.rpc.generate(request)
        count(kind, "edgewise_generations_total", 1, code="OK")
        count(kind, "edgewise_generated_tokens_total", 8)
        count(kind, "edgewise_prompt_tokens_total", messages[-1].prompt_tokens)
        count(kind, "edgewise_ensemble_samples_count", 1)
        count(kind, "edgewise_ensemble_samples_sum", 2)
        count(kind, "edgewise_first_token_duration_seconds_count", 1)
        count(kind, "edgewise_token_duration_seconds_count", 7)
        for message in messages:
            count(kind, "edgewise_attention_edges_total", message.edges.edges * 2)
            count(kind, "edgewise_attention_pairs_total", message.edges.pairs * 2)


if __name__ == "__main__":
    unittest.main()
