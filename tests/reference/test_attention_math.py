"""Attention and its biases against plain sums, and what SSA draws against docs/random-numbers.md written out."""

import math
import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import make_random_numbers  # noqa: E402
from attention_math import alibi_bias, alibi_slopes, attend, pairwise_bias, relative_bias  # noqa: E402
from permutation import GRID_ROWS, ORDER, Draw  # noqa: E402
from philox import philox4x32  # noqa: E402


class AttentionTest(unittest.TestCase):
    def test_by_hand_with_values_of_another_width(self):
        rng = np.random.default_rng(0)
        n, d, e = 7, 5, 3
        q, k, v = (rng.standard_normal((n, width)) for width in (d, d, e))
        bias, edges = rng.standard_normal((n, n)), rng.integers(0, 3, (n, n)).astype(np.float64)
        edges[2] = 0
        found = attend(q, k, v, edges, bias)
        self.assertEqual(found.shape, (n, e))
        for i in range(n):
            weights = [
                edges[i, j] * math.exp(sum(q[i, t] * k[j, t] for t in range(d)) / math.sqrt(d) + bias[i, j])
                for j in range(n)
            ]
            for column in range(e):
                expected = sum(w * v[j, column] for j, w in enumerate(weights)) / (sum(weights) or 1.0)
                self.assertAlmostEqual(found[i, column], expected, places=12)
        np.testing.assert_array_equal(found[2], np.zeros(e))

    def test_large_scores_do_not_overflow(self):
        q = np.array([[1e4], [-1e4]])
        found = attend(q, q, np.array([[1.0], [2.0]]), np.ones((2, 2)))
        np.testing.assert_array_equal(found, [[1.0], [2.0]])

    def test_slopes(self):
        self.assertEqual(alibi_slopes(8), [2.0**-a for a in range(1, 9)])
        self.assertEqual(alibi_slopes(1), [2.0**-8])
        self.assertEqual(alibi_slopes(2), [2.0**-4, 2.0**-8])
        self.assertEqual(alibi_slopes(3), [2.0**-4, 2.0**-8, 2.0**-2])
        self.assertEqual(alibi_slopes(6), [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
        np.testing.assert_allclose(alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-15)

    def test_biases_by_hand(self):
        n, longest, heads = 5, 8, 3
        rng = np.random.default_rng(1)
        table, learned = rng.standard_normal((heads, 2 * longest - 1)), rng.standard_normal((heads, 4))
        values, buckets = rng.standard_normal(n * n).tolist(), rng.integers(0, 4, n * n).tolist()
        alibi, relative = alibi_bias(heads, n), relative_bias(table, n)
        given = pairwise_bias({"kind": "values"}, values, None, heads, n)
        looked_up = pairwise_bias({"kind": "buckets", "num_buckets": 4}, buckets, learned, heads, n)
        for a in range(heads):
            for i in range(n):
                for j in range(n):
                    self.assertEqual(alibi[a, i, j], -alibi_slopes(heads)[a] * abs(i - j))
                    self.assertEqual(relative[a, i, j], table[a, j - i + longest - 1])
                    self.assertEqual(given[a, i, j], values[i * n + j])
                    self.assertEqual(looked_up[a, i, j], learned[a, buckets[i * n + j]])

    def test_pairwise_biases_that_do_not_fit(self):
        buckets = {"kind": "buckets", "num_buckets": 4}
        for config, given in (
            (None, [0.0]),
            ({"kind": "values"}, [0.0, 1.0]),
            (buckets, [4]),
            (buckets, [-1]),
            (buckets, [0.5]),
        ):
            with self.subTest(config=config, given=given), self.assertRaises(ValueError):
                pairwise_bias(config, given, np.zeros((1, 4)), 1, 1)


class DrawTest(unittest.TestCase):
    SEED, SAMPLE, LAYER, WINDOW = 0x0123456789ABCDEF, 7, 3, 5

    def words(self, index: int, window: int, side: int, stream: int) -> list:
        word2 = self.LAYER * 2**20 + side * 2**7 + stream
        key = (self.SEED % 2**32, self.SEED // 2**32)
        return [int(word) for word in philox4x32((index, window, word2, self.SAMPLE), key)]

    def test_by_hand(self):
        for side in (0, 1):
            draw = Draw(self.SEED, self.SAMPLE, side)
            for stream in (ORDER, GRID_ROWS):
                z = draw.normals(self.LAYER, self.WINDOW, 40, stream)
                for index in range(40):
                    words = self.words(index, self.WINDOW, side, stream)
                    radius = math.sqrt(-2 * math.log((words[0] + 0.5) / 2**32))
                    self.assertAlmostEqual(z[index], radius * math.cos(2 * math.pi * words[1] / 2**32), places=13)
            keys = draw.sort_keys(self.LAYER, 40)
            for index in range(40):
                words = self.words(index, 0, side, ORDER)
                self.assertEqual(int(keys[index]), words[0] * 2**32 + words[1])

    def test_each_argument_matters(self):
        base = Draw(1, 2, 0).normals(3, 4, 50)
        for other in (
            Draw(9, 2, 0).normals(3, 4, 50),
            Draw(1 + (1 << 32), 2, 0).normals(3, 4, 50),
            Draw(1, 9, 0).normals(3, 4, 50),
            Draw(1, 2, 1).normals(3, 4, 50),
            Draw(1, 2, 0).normals(9, 4, 50),
            Draw(1, 2, 0).normals(3, 9, 50),
            Draw(1, 2, 0).normals(3, 4, 50, GRID_ROWS),
        ):
            self.assertLess(abs(np.corrcoef(base, other)[0, 1]), 0.6)
        np.testing.assert_array_equal(Draw(1, 2, 0).normals(3, 4, 20), base[:20])  # the count does not

    def test_the_golden_values(self):
        """tests/testdata/orders-v1.txt is what make_random_numbers.py writes, to the last digits of a logarithm."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "orders-v1.txt")
        with open(path, encoding="utf-8") as file:
            committed = file.readlines()
        made = make_random_numbers.order_lines()
        self.assertEqual(len(made), len(committed))
        for ours, theirs in zip(map(str.split, made), map(str.split, committed)):
            if ours[0] != "#":
                self.assertAlmostEqual(float(ours.pop(7)), float(theirs.pop(7)), places=12)
            self.assertEqual(ours, theirs)

    def test_the_golden_events(self):
        """tests/testdata/events-v2.txt is what make_random_numbers.py writes."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "events-v2.txt")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "".join(make_random_numbers.event_lines()))

    def test_the_golden_choices(self):
        """tests/testdata/token-choices-v1.txt is what make_random_numbers.py writes, to the last digits of a logarithm."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "token-choices-v1.txt")
        with open(path, encoding="utf-8") as file:
            committed = file.readlines()
        made = "".join(make_random_numbers.choice_lines()).splitlines()
        self.assertEqual(len(made), len(committed))
        for ours, theirs in zip(map(str.split, made[3:]), map(str.split, committed[3:])):
            self.assertEqual(ours[:-3], theirs[:-3])
            np.testing.assert_allclose([float(x) for x in ours[-3:]], [float(x) for x in theirs[-3:]], atol=2e-9)

    def test_normal_and_uniform(self):
        z = Draw(11).normals(0, 0, 200_000)
        self.assertLess(abs(z.mean()), 0.01)
        self.assertLess(abs(z.std() - 1), 0.01)
        for limit, share in ((-1, 0.158655), (0, 0.5), (2, 0.977250)):
            self.assertLess(abs((z < limit).mean() - share), 0.005)
        firsts = [int(np.argmin(Draw(seed).sort_keys(0, 4))) for seed in range(2000)]
        counts = np.bincount(firsts, minlength=4)
        self.assertLess(((counts - 500) ** 2 / 500).sum(), 16.3)  # chi squared, 3 degrees of freedom: 0.1%


if __name__ == "__main__":
    unittest.main()
