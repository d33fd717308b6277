"""The ratios of times that bench/gpu/figures.py makes of rows, and what it says of them."""

import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/gpu"))
import figures  # noqa: E402


def layer(case, precision, **times):
    return {"n": case.n, "batch_heads": case.batch_heads, "target_density": case.density, "rank": case.rank,
            "precision": precision, "ours_ms": times["ours"], "membership_ms": times["members"],
            "ours_dense_ms": times["dense"], "peers": {figures.CUDNN: times["cudnn"], figures.SDPA_FP32: 10.0}}


def printed(found):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        figures.print_figures(found)
    return output.getvalue().splitlines()[2:]


class FiguresTest(unittest.TestCase):
    def test_every_case_of_a_layer_has_its_figure(self):
        rows = [layer(case, precision, ours=1.5, members=0.5, dense=1.0, cudnn=4.0)
                for case in figures.LAYERS for precision in case.precisions]
        values = [figure.value for figure in figures.of_layers(rows)]
        self.assertEqual(values, [0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 2.0, 5.0])
        self.assertEqual([line.split()[-1] for line in printed(figures.of_layers(rows))], ["met"] * 8)

    def test_a_figure_on_the_wrong_side_is_missed_and_one_without_rows_not_measured(self):
        rows = [layer(figures.LAYERS[0], "bf16", ours=1.0, members=0.2, dense=1.0, cudnn=1.0),
                layer(figures.LAYERS[8], "bf16", ours=1.0, members=0.0001, dense=1.0, cudnn=1.7)]
        lines = printed(figures.of_layers(rows))
        self.assertRegex(lines[1], r" 1.20 +<= 1.1  MISSED$")
        self.assertRegex(lines[3], r" 1.70 +>= 1.8  MISSED$")
        self.assertTrue(lines[0].endswith("not measured"))

    def test_models(self):
        ways = {"dense": 2.0, "no cap": 2.2, "cap 1 %": 2.64}
        rows = [{"case": "sbm 0.25%, 16384 tokens", "precision": "bf16", "own_ms": 2.0, "dense_ms": 7.0,
                 "cap_of_a_tenth_ms": 1.0},
                {"case": "long", "precision": "bf16",
                 **{f"{way}, 1 samples": {"compute_ms": ms} for way, ms in ways.items()}}]
        values = [figure.value for figure in figures.of_models(rows)]
        self.assertEqual(values[:4], [3.5, 0.5, None, None])
        self.assertAlmostEqual(values[4], 1.1)
        self.assertAlmostEqual(values[5], 1.2)


if __name__ == "__main__":
    unittest.main()
