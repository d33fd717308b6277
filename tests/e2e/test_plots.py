"""The plots of client/python show what the command line's JSON says. Needs Matplotlib."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from edgewise_process import EXAMPLES, ROOT, Server

PLOT = os.path.join(ROOT, "client", "python", "src", "edgewise", "plot.py")
FILM = "a warm and funny film"
if importlib.util.find_spec("matplotlib") is None:
    raise unittest.SkipTest("no Matplotlib: apt-get install python3-matplotlib")

specification = importlib.util.spec_from_file_location("plot", PLOT)
plot = importlib.util.module_from_spec(specification)
specification.loader.exec_module(plot)


class PlotsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        with Server(EXAMPLES) as server:
            def asked(*arguments):
                result = server.cli(*arguments, "--json")
                assert result.returncode == 0, result.stderr
                return json.loads(result.stdout)
            film = ("predict", "--model=sentiment", f"--text={FILM}", "--seed=1")
            cls.answer = asked(*film, "--samples=8", "--key_degrees", "--each_sample", "--max_edges=20")
            cls.graph = asked(*film, "--samples=1", "--graph")
            data = os.path.join(ROOT, "examples", "data", "long.jsonl")
            cls.evaluation = asked("evaluate", "--model=long", f"--data={data}", "--limit=2", "--caps=0.1%,1%,50%")
            with open(data, encoding="utf-8") as file:
                text = json.loads(file.readline())["text"]
            cls.long = asked("predict", "--model=long", "--samples=1", "--graph", "--seed=1", "--max_density=0.2",
                             f"--text={text}")

    def heads(self, figure, count):
        return [axes.images[0].get_array().filled(0) for axes in figure.subfigs[0].axes[:count]]

    def test_an_evaluation_has_a_point_for_each_setting_that_dropped_edges(self):
        rows = self.evaluation["settings"]
        self.assertEqual([row["capped"] for row in rows[2:]], [2, 2, 0])
        quality, speed = plot.evaluation(self.evaluation).axes
        for axes, key in ((quality, "quality"), (speed, "speed")):
            curve = axes.lines[2].get_xydata()
            np.testing.assert_allclose(curve, [[row["density"], row[key]] for row in (rows[2], rows[3], rows[1])])
            self.assertEqual(axes.lines[1].get_xydata().tolist(), [[1, rows[0][key]]])
        refused = json.loads(json.dumps(self.evaluation))
        refused["settings"][2]["refused"] = 1
        self.assertEqual(len(plot.evaluation(refused).axes[0].lines[2].get_xydata()), 2)

    def test_a_head_shows_its_graph(self):
        heads = self.graph["predictions"][0]["graph"]["layers"]
        drawn = self.heads(plot.answer(self.answer, FILM.split(), self.graph), 4)
        for cells, head in zip(drawn, [head for layer in heads for head in layer["heads"]], strict=True):
            expected = np.zeros((5, 5))
            for query in range(5):
                edges = slice(head["row_offsets"][query], head["row_offsets"][query + 1])
                expected[query, head["keys"][edges]] = head["weights"][edges]
            np.testing.assert_allclose(cells, expected, atol=1e-6)

    def test_without_a_graph_a_head_shows_the_degrees_of_its_keys(self):
        drawn = self.heads(plot.answer(self.answer), 4)
        layers = self.answer["predictions"][0]["edges"]["layers"]
        for cells, head in zip(drawn, [head for layer in layers for head in layer["heads"]], strict=True):
            np.testing.assert_allclose(cells[0] * 8, head["key_degrees"], atol=1e-5)

    def test_positions_beyond_the_cells_are_binned_and_no_edge_is_lost(self):
        heads = [head for layer in self.long["predictions"][0]["graph"]["layers"] for head in layer["heads"]]
        positions = len(heads[0]["row_offsets"]) - 1
        self.assertGreater(positions, plot.MOST_CELLS)
        for cells, head in zip(self.heads(plot.answer(self.long), len(heads)), heads, strict=True):
            self.assertEqual(cells.shape, (plot.MOST_CELLS, plot.MOST_CELLS))
            self.assertAlmostEqual(cells.sum() * (positions / plot.MOST_CELLS) ** 2, len(head["keys"]), delta=0.01)

    def test_equal_tokens_are_one_key_and_shares_sum_to_one(self):
        shares = plot.key_shares([], [{"key_degrees": [1, 2, 3, 2]}], ["a", "b", "a", "c"])
        self.assertEqual(shares, [("a", 0.5), ("b", 0.25), ("c", 0.25)])

    def test_the_command_writes_the_file_or_says_why_not(self):
        def run(document, *arguments):
            return subprocess.run([sys.executable, PLOT, "-", *arguments], input=json.dumps(document), text=True,
                                  capture_output=True, timeout=60, check=False)
        for document, end, begin in ((self.answer, "svg", b"<?xml"), (self.evaluation, "png", b"\x89PNG")):
            path = os.path.join(self.folder, f"picture.{end}")
            done = run(document, "-o", path)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, "rb") as file:
                self.assertEqual(file.read(len(begin)), begin)
        wrong = run(self.answer, "--tokens", "a warm film", "-o", path)
        self.assertEqual((wrong.returncode, "--tokens has 3 names; the answer has 5 positions" in wrong.stderr), (1, True))
        bare = run({**self.graph, "predictions": [{**self.graph["predictions"][0], "graph": None}]}, "-o", path)
        self.assertIn("ask with --key_degrees, or --samples=1 --graph", bare.stderr)


if __name__ == "__main__":
    unittest.main()
