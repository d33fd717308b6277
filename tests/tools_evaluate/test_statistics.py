"""The arithmetic behind the tables of examples/README.md."""
import math
import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))

from evaluation import statistics  # noqa: E402


class IntervalTest(unittest.TestCase):
    def test_is_students_t_over_the_seeds(self):
        mean, half = statistics.interval([1.0, 2.0, 3.0, 4.0, 5.0])
        self.assertEqual(mean, 3.0)
        self.assertAlmostEqual(half, 2.776 * math.sqrt(2.5) / math.sqrt(5), places=6)

    def test_one_value_has_no_width(self):
        self.assertEqual(statistics.interval([0.25]), (0.25, 0.0))

    def test_covers_the_truth_95_times_in_100(self):
        draws = np.random.default_rng(1).normal(size=(4000, 5))
        inside = sum(abs(mean) <= half for mean, half in map(statistics.interval, draws))
        self.assertAlmostEqual(inside / 4000, 0.95, delta=4 * math.sqrt(0.95 * 0.05 / 4000))

    def test_many_seeds_use_the_normal_quantile(self):
        values = np.arange(40.0)
        _, half = statistics.interval(values)
        self.assertAlmostEqual(half, 1.96 * values.std(ddof=1) / math.sqrt(40), places=9)


class WilsonTest(unittest.TestCase):
    def test_known_values(self):
        low, high = statistics.wilson(8, 10)
        self.assertAlmostEqual(low, 0.4902, places=3)
        self.assertAlmostEqual(high, 0.9433, places=3)

    def test_stays_within_0_and_1_where_everything_is_right(self):
        low, high = statistics.wilson(50, 50)
        self.assertGreater(low, 0.9)
        self.assertLessEqual(high, 1.0 + 1e-12)


class AdaptivityTest(unittest.TestCase):
    def test_separates_inputs_from_draws(self):
        rng = np.random.default_rng(2)
        expected = rng.normal(0.3, 0.06, 3000)
        sampled = expected[:, None] + rng.normal(0.0, 0.02, (3000, 20))
        between, within, ratio = statistics.adaptivity(expected, sampled)
        self.assertAlmostEqual(between, 0.06, delta=0.003)
        self.assertAlmostEqual(within, 0.02, delta=0.001)
        self.assertAlmostEqual(ratio, 3.0, delta=0.2)

    def test_equal_inputs_do_not_adapt_however_noisy_the_draws(self):
        sampled = np.random.default_rng(3).normal(0.3, 0.05, (100, 10))
        self.assertEqual(statistics.adaptivity(np.full(100, 0.3), sampled)[2], 0.0)

    def test_draws_that_do_not_differ_have_no_ratio(self):
        self.assertIsNone(statistics.adaptivity([0.1, 0.2], np.ones((2, 3)))[2])


class DensityCapsTest(unittest.TestCase):
    def test_never_above_what_was_asked_and_at_most_2_percent_below(self):
        densities = np.random.default_rng(4).uniform(0.0005, 1.0, 500)
        for cap, density in zip(statistics.density_caps(densities), densities):
            self.assertLessEqual(cap, density * (1 + 1e-6))
            self.assertGreaterEqual(cap, density / 1.0201)

    def test_few_caps_serve_many_inputs(self):
        self.assertLess(len(set(statistics.density_caps(np.linspace(0.1, 0.3, 1000)))), 60)

    def test_an_input_without_edges_has_a_cap_above_zero(self):
        self.assertGreater(statistics.density_caps([0.0])[0], 0.0)

    def test_one_is_allowed(self):
        self.assertEqual(statistics.density_caps([1.0]), [1.0])


class EvenlyTest(unittest.TestCase):
    def test_takes_all_where_there_are_few(self):
        self.assertEqual(statistics.evenly(3, 5), [0, 1, 2])

    def test_is_spread_over_the_whole_set(self):
        self.assertEqual(statistics.evenly(10, 5), [0, 2, 4, 6, 8])
        self.assertEqual(len(set(statistics.evenly(1821, 400))), 400)


class BaselinesTest(unittest.TestCase):
    def test_come_from_both_spellings_and_skip_what_is_no_number(self):
        found = statistics.baselines({"accuracy_sampled": 0.9, "baseline_naive_bayes": 0.82,
                                      "baselines": {"first_digit": 0.2, "constants": {"[MAX": 9}}})
        self.assertEqual(found, {"naive Bayes": 0.82, "the first digit": 0.2})


if __name__ == "__main__":
    unittest.main()
