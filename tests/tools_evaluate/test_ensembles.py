"""The JSON of `edgewise evaluate` becomes entries of results.json."""
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))

from evaluation import ensembles, examples, measure, overrides, tables  # noqa: E402


def setting(quality=(), refused=0, **more):
    return {"quality": sum(quality) / max(len(quality), 1), "quality_by_repeat": list(quality), "refused": refused,
            "refusal": "input 1: too few" if refused else "", "answered": 4, "capped": 3, "edges": 20.0,
            "density": 0.1, "scored_tokens": 30, "speed": 2.0, "samples": 1, "total_ms": {"median": 6.0},
            "compute_ms": {"median": 5.0, "quartiles": [4.0, 7.0]}, **more}


class FakeServer:
    """Says what it is told, and remembers what it was asked."""

    def __init__(self, measured, *settings):
        self.answer = {"measure": measured, "device": "cpu", "settings": settings}

    def evaluate(self, model, path, caps, *flags):
        self.asked = (model, examples.read(path), list(caps), flags)
        return self.answer


class CompareTest(unittest.TestCase):
    EXAMPLES = [{"text": "a"}, {"text": "b"}]

    def compare(self, server, metric="loss"):
        with tempfile.TemporaryDirectory() as folder:
            sweep = ensembles.Sweep(server, "m", metric, self.EXAMPLES, 0, [4, 5], folder, lambda text: None)
            return sweep.compare(self.EXAMPLES, (0.5, 0.1), sweep.seeds)

    def test_rows_are_scores_by_seed_and_refusals(self):
        server = FakeServer("loss", setting([2.0, 2.0]), setting([2.5, 3.5]), setting([3.0, 3.0]), setting(refused=2))
        found = self.compare(server)
        self.assertEqual(server.asked, ("m", self.EXAMPLES, [0.5, 0.1], ("--seed=4", "--repeats=2")))
        self.assertEqual((found["dense"], found["tokens"], found["device"]), (2.0, 15, "cpu"))
        self.assertEqual((found["free"]["score"], found["free"]["by_seed"]), (3.0, [2.5, 3.5]))
        self.assertEqual((found["caps"][0]["cap"], found["caps"][0]["capped_share"]), (0.5, 0.75))
        self.assertEqual(found["caps"][1], {"cap": 0.1, "refused": "input 1: too few"})

    def test_another_measure_than_the_expected_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "measured the loss, not the accuracy"):
            self.compare(FakeServer("loss", setting([1.0]), setting([1.0])), "accuracy")


class PointTest(unittest.TestCase):
    def test_parts_of_the_inputs_count_by_their_size(self):
        parts = [setting([0.5, 1.0], known=8, capped=0), setting([0.0, 1.0], known=8, answered=12, edges=40.0)]
        found = measure.point(parts, cap=0.1)
        self.assertEqual((found["accuracy_by_seed"], found["accuracy"], found["cap"]), ([0.25, 1.0], 0.625, 0.1))
        self.assertEqual((found["edges"], found["capped_share"]), (35.0, 3 / 16))

    def test_each_input_has_its_cap_and_at_least_one_edge(self):
        class Groups(FakeServer):
            asked_groups = []

            def evaluate(self, model, path, caps, *flags):
                self.asked_groups.append((list(caps), [example["text"] for example in examples.read(path)]))
                return super().evaluate(model, path, caps, *flags)
        server = Groups("accuracy", *[setting([1.0], known=1)] * 3)
        with tempfile.TemporaryDirectory() as folder:
            sweep = measure.Sweep(server, "m", [{"text": text} for text in "abc"], folder, [1], None)
            sweep.pairs = [100, 30, 100]
            sweep.capped([0.02] * 3)
        self.assertEqual(server.asked_groups, [([0.02], ["a", "c"]), ([0.05], ["b"])])


class TimesTest(unittest.TestCase):
    def test_settings_have_the_names_of_the_table(self):
        server = FakeServer("accuracy", setting(speed=1.0), setting(), setting(speed=3.0))
        with tempfile.TemporaryDirectory() as folder:
            inputs = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
            found = measure.Sweep(server, "m", inputs, folder, [1], None).times({"cap 1 %": 0.01}, 8, 1)
        self.assertEqual(server.asked, ("m", inputs[:1], [0.01], ("--seed=1", "--repeats=8", "--truncate=tail")))
        self.assertEqual(list(found), ["dense", "as drawn", "cap 1 %"])
        self.assertEqual(found["cap 1 %"], {"compute_ms": 5.0, "compute_ms_quartiles": [4.0, 7.0], "speedup": 3.0,
                                            "total_ms": 6.0, "density": 0.1, "calls": 4})


class OverridesTest(unittest.TestCase):
    NAME = "shakespeare-llama"

    def measured(self, name, inputs, *settings):
        server = FakeServer("loss", *settings)
        with tempfile.TemporaryDirectory() as folder:
            return server, overrides.evaluate(name, server, pathlib.Path(folder), inputs, [4, 5], lambda text: None)

    def losses(self):
        """Dense attention and one other, twice each; 30 tokens of a text of 60 characters."""
        return self.measured(self.NAME, [{"text": "a" * 60}],
                             setting([2.0, 2.0], setting="dense", answered=2, scored_tokens=60, density=1.0),
                             setting([3.0, 4.0], setting="blocks", answered=2, scored_tokens=60))

    def test_losses_are_those_of_characters(self):
        server, found = self.losses()
        self.assertEqual(server.asked[:3], (self.NAME, [{"text": "a" * 60}], []))
        self.assertEqual(server.asked[3], ("--seed=4", "--repeats=2", *overrides.MODELS[self.NAME][-1]))
        self.assertEqual((found["tokens"], found["characters"]), (30, 60))
        self.assertEqual([row["setting"] for row in found["rows"]], ["dense", "blocks"])  # once, of all the runs
        self.assertEqual([row["score"] for row in found["rows"]], [1.0, 1.75])

    def test_the_table_has_an_interval_where_something_is_drawn(self):
        entry = {"seeds": [4, 5], "date": "2026-01-01", "command": "./dev evaluate", **self.losses()[1]}
        block = tables.block(f"{self.NAME}-overrides", {self.NAME: entry})
        self.assertIn("| dense | 1.0000 | 100.0 % |", block)
        self.assertRegex(block, r"\| blocks \| 1\.7500 ± [0-9.]+ \| 10\.0 % \|")
        self.assertIn("30 scored tokens, 60 characters", block)

    def test_pairs_have_rank_correlations(self):
        pairs = [{"text": "a", "second_text": "b", "value": 1.0}, {"text": "a", "second_text": "c", "value": 0.0}]
        _, found = self.measured("review-ranker", pairs, setting([0.4, 0.4], setting="dense", density=1.0,
                                                                 measures={"error": 0.4, "rank_correlation": 0.7}))
        entry = {"seeds": [4, 5], "date": "2026-01-01", "command": "./dev evaluate", **found}
        block = tables.block("review-ranker-overrides", {"review-ranker": entry})
        self.assertIn("| attention | rank correlation | density |", block)
        self.assertIn("| dense | 0.7000 | 100.0 % |", block)
        self.assertIn("2 pairs of test sentences", block)


if __name__ == "__main__":
    unittest.main()
