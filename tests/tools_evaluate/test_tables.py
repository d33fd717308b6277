"""Tables, marked blocks and what is read from the command line's JSON."""
import json
import os
import re
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))

from evaluation import server, tables  # noqa: E402


def point(accuracy, **more):
    return {"accuracy": accuracy, "ci95": 0.002, "accuracy_by_seed": [accuracy] * 5, "edges": 50.0, "density": 0.1,
            "capped_share": 1.0, **more}


def entry(accuracy=0.85, lost=0.004, ratio=4.0, baseline=0.82):
    return {"inputs": 100, "source": "generated", "seeds": [1, 2, 3, 4, 5], "date": "2026-01-01", "device": "cpu",
            "command": "./dev evaluate", "cores": 2, "load_average": 1.5,
            "baselines": {"naive bayes": baseline},
            "dense": {"accuracy": 0.86, "wilson95": [0.78, 0.91], "edges": 500.0},
            "free": {"one_sample": point(accuracy), "samples": [{"samples": 1, **point(accuracy)}],
                     "edges": 100.0, "density": 0.2, "density_min": 0.1, "density_max": 0.3,
                     "between_inputs_sd": 0.04, "within_input_sd": 0.01,
                     "adaptivity": ratio},
            "caps": [{"cap": 0.05, **point(0.8)}], "half": point(0.845, lost=lost, lost_ci95=0.003)}


class TargetsTest(unittest.TestCase):
    def rows(self, name, **more):
        lines = tables.targets({name: entry(**more)}).splitlines()
        return [line for line in lines if f"`{name}`" in line and "a wish" not in line]

    def test_all_met(self):
        for line in self.rows("sentiment"):
            self.assertTrue(line.endswith("| met |"), line)

    def test_each_miss_is_said(self):
        for name, more, what in (("sentiment", {"accuracy": 0.799, "baseline": 0.7}, "≥ 80 %"),
                                 ("sentiment", {"lost": 0.011}, "≤ 1 point"),
                                 ("sentiment", {"ratio": 2.9}, "≥ 3 times"),
                                 ("long", {"accuracy": 0.91}, "≥ 10 points"),
                                 ("listops", {"accuracy": 0.9}, "≥ 10 points")):
            missed = [line for line in self.rows(name, **more) if "missed" in line]
            self.assertEqual(len(missed), 1, (name, more))
            self.assertIn(what, missed[0])

    def test_long_has_to_beat_its_baseline_by_ten_points(self):
        self.assertTrue(all("met |" in line for line in self.rows("long", accuracy=0.93)))


class BlocksTest(unittest.TestCase):
    def test_only_the_marked_text_changes(self):
        text = "before\n<!-- evaluate: sentiment-caps -->\nold\n<!-- end -->\nafter\n"
        filled = tables.fill(text, {"sentiment": entry()})
        self.assertTrue(filled.startswith("before\n<!-- evaluate: sentiment-caps -->\n| cap"))
        self.assertTrue(filled.endswith("|\n<!-- end -->\nafter\n"))
        self.assertNotIn("old", filled)
        self.assertEqual(tables.fill(filled, {"sentiment": entry()}), filled)

    def test_what_was_not_measured_says_why(self):
        text = "<!-- evaluate: sentiment-caps -->\nold\n<!-- end -->"
        self.assertIn("Not measured: no text.", tables.fill(text, {"sentiment": {"skipped": "no text"}}))

    def test_both_ways_to_keep_edges_stand_side_by_side(self):
        rows = [{"cap": 0.005, "random": point(0.5), "probable": point(0.75)}]
        keeps = {"rows": rows, "inputs": 100, "seeds": [1, 2], "device": "cpu", "date": "2026-01-01", "command": "./dev"}
        filled = tables.fill("<!-- evaluate: keeps -->\n<!-- end -->", {"long": {**entry(), "keeps": keeps}})
        self.assertIn("| `long` | 0.5 % | 50.0 ± 0.2 % | 75.0 ± 0.2 % | 50 | 100 % |", filled)
        self.assertIn("Inputs: `long` 100. Measured 2026-01-01 on `cpu` with seeds 1 to 2 by `./dev`.", filled)
        self.assertIn("Not measured:", tables.fill("<!-- evaluate: keeps -->\n<!-- end -->", {"long": entry()}))

    def test_without_the_text_there_are_no_times(self):
        self.assertIn("Not measured:", tables.fill("<!-- evaluate: long-times -->\n<!-- end -->", {"long": entry()}))

    def test_an_unknown_block_is_an_error(self):
        with self.assertRaises(KeyError):
            tables.fill("<!-- evaluate: sentiment-colour -->\n<!-- end -->", {"sentiment": entry()})

    def test_every_block_of_the_readme_is_known_and_every_table_is_rectangular(self):
        path = os.path.join(ROOT, "examples", "README.md")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        models = {name: entry() for name in tables.NAMES}
        mode = {"compute_ms": 2.0, "speedup": 1.0, "density": 0.5, "calls": 20}
        models["long"]["times"] = {"2048": {"dense": mode, "as drawn": mode}}
        filled = tables.fill(text, models)
        for block in re.findall(r"(?:^\|.*\n)+", filled, re.MULTILINE):
            self.assertEqual(len({line.count("|") for line in block.strip().splitlines()}), 1, block)
        self.assertGreater(filled.count("<!-- evaluate: "), 5)


    def test_lines_are_wrapped_but_for_rows(self):
        row = "| " + "wide " * 30 + "|"
        lines = tables.wrapped(f"{row}\n\n" + "words of a sentence " * 8).split("\n")
        self.assertEqual(lines[:2], [row, ""])
        self.assertEqual([len(line) for line in lines[2:]], [119, 39])


class AnswerTest(unittest.TestCase):
    def response(self, **more):
        prediction = {"label_id": 1, "tokens": [], "sample_outputs": [{"probabilities": [0.2, 0.8], "edges": "7"}],
                      "edges": {"edges": 7, "pairs": "20", "expected_edges": 6.5, "capped": False}, **more}
        return json.dumps({"predictions": [prediction], "device": "cpu"})

    def test_integers_that_json_carries_as_text(self):
        answer = server.parse(self.response())
        self.assertEqual((answer.pairs, answer.sample_edges.tolist()), (20, [7.0]))

    def test_a_refused_input_stops_the_evaluation_with_its_message(self):
        with self.assertRaisesRegex(RuntimeError, "input 3: INVALID_ARGUMENT: too long"):
            server.parse('{"input":3,"error":{"code":"INVALID_ARGUMENT","message":"too long"}}')


if __name__ == "__main__":
    unittest.main()
