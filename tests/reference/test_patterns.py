"""Patterns against docs/model-format.md written out in plain loops, and what must hold of them."""

import math
import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import patterns  # noqa: E402

LENGTH = 24  # N
VALID = {  # n positions as the model sees them
    "full": np.ones(LENGTH, bool),
    "short": np.ones(17, bool),
    "one": np.ones(1, bool),
    "pads": np.array([i not in (0, 5, 6, 13) for i in range(20)] + [False] * 3),
}


class Noise:
    """normals(window, count, of_rows), the same numbers for the same arguments; `calls` remembers them."""

    def __init__(self, seed: int = 0):
        self._seed, self.calls = seed, []

    def __call__(self, window: int, count: int, of_rows: bool = False) -> np.ndarray:
        self.calls.append((window, count, of_rows))
        return np.random.default_rng([self._seed, window, of_rows]).standard_normal(4096)[:count]


def sort_keys(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 1 << 63, 4096).astype(np.uint64)[:count]


def pairs(edges: np.ndarray) -> set:
    return {(int(i), int(j)) for i, j in zip(*np.nonzero(edges))}


def sorted_by(values: list) -> list:
    """The indices in ascending order of the values, ties to the lower index."""
    return sorted(range(len(values)), key=lambda i: (values[i], i))


class SsaTest(unittest.TestCase):
    def test_one_window_is_dense(self):
        for name, valid in VALID.items():
            for causal in (False, True):
                dense = patterns.dense(valid, causal)
                local = patterns.ssa_local_causal(valid, LENGTH, 1, 0.4, Noise()) if causal else patterns.ssa_local(
                    valid, 1, 0.4, Noise())
                np.testing.assert_array_equal(local, dense, name)
                np.testing.assert_array_equal(patterns.ssa_grid(valid, (6, 4), 1, 0.4, Noise(), causal), dense, name)
                keep_all = patterns.ssa_none_causal(valid, LENGTH, 99, sort_keys) if causal else patterns.ssa_none(
                    valid, 99, sort_keys)
                np.testing.assert_array_equal(keep_all, dense, name)

    def test_without_noise_a_window_per_token_is_the_diagonal(self):
        for name, valid in VALID.items():
            expected = np.diag(valid)
            for windows in (LENGTH, LENGTH + 7):
                np.testing.assert_array_equal(patterns.ssa_local(valid, windows, 0.0, Noise()), expected, name)
                causal = patterns.ssa_local_causal(valid, LENGTH, windows, 0.0, Noise())
                np.testing.assert_array_equal(causal, expected, name)

    def test_local_by_hand(self):
        """Lengths that windows do not divide, and more windows than tokens."""
        for name, valid in VALID.items():
            for windows in (1, 3, 5, 7, 40):
                places = [i for i, v in enumerate(valid) if v]
                n, z = len(places), Noise()(0, 4096)
                order = sorted_by([t + 0.2 * n * z[t] for t in range(n)])
                w = min(windows, n)
                expected = set()
                for a in range(w):
                    slots = range(math.floor(a * n / w), math.floor((a + 1) * n / w))
                    expected |= {(places[i], places[order[s]]) for i in slots for s in slots}
                found = patterns.ssa_local(valid, windows, 0.2, Noise())
                self.assertEqual(pairs(found), expected, name)
                self.assertEqual(found.sum(axis=0)[valid].min() > 0, True)  # every token is a source once per window

    def test_local_causal_by_hand(self):
        for name, valid in VALID.items():
            for windows in (1, 3, 5, 7, 24, 40):
                size = math.ceil(LENGTH / windows)
                expected = set()
                for i, is_query in enumerate(valid):
                    a = i // size
                    end = min((a + 1) * size, LENGTH)
                    z = Noise()(a, 4096)
                    order = sorted_by([j + 0.3 * LENGTH * z[j] for j in range(end)])
                    sources = order[a * size : end]
                    self.assertTrue(any(j <= i for j in sources))  # no query is left without a source
                    expected |= {(i, j) for j in sources if is_query and j <= i and valid[j]}
                found = patterns.ssa_local_causal(valid, LENGTH, windows, 0.3, Noise())
                self.assertEqual(pairs(found), expected, name)

    def test_none_by_hand(self):
        for name, valid in VALID.items():
            for keep in (1, 4, 99):
                places = [i for i, v in enumerate(valid) if v]
                kept = [places[t] for t in sorted_by(sort_keys(len(places)).tolist())[:keep]]
                expected = {(i, j) for i in places for j in kept}
                self.assertEqual(pairs(patterns.ssa_none(valid, keep, sort_keys)), expected, name)
                kept = sorted_by(sort_keys(LENGTH).tolist())[:keep]
                expected = {(i, j) for i in places for j in kept if j in places and j <= i}
                self.assertEqual(pairs(patterns.ssa_none_causal(valid, LENGTH, keep, sort_keys)), expected, name)

    def test_causal_none_may_leave_rows_empty(self):
        edges = patterns.ssa_none_causal(VALID["full"], LENGTH, 1, sort_keys)
        first = int(np.argmin(sort_keys(LENGTH)))
        self.assertGreater(first, 0)
        np.testing.assert_array_equal(edges.sum(axis=1), np.arange(LENGTH) >= first)

    def test_ties_go_to_the_lower_index(self):
        same = np.zeros(LENGTH, dtype=np.uint64)
        edges = patterns.ssa_none(VALID["full"], 3, lambda count: same[:count])
        self.assertEqual({j for _, j in pairs(edges)}, {0, 1, 2})

    def test_grid_by_hand(self):
        rows, columns = 6, 4
        for name, valid in VALID.items():
            for windows in (1, 2, 4, 6, 9):
                for causal in (False, True):
                    expected = set()
                    w = min(windows, rows)
                    for a in range(w):
                        begin, end = a * rows // w, (a + 1) * rows // w
                        height = end if causal else rows
                        z = Noise()(a if causal else 0, rows * columns, False)
                        after = {}
                        for r in range(height):
                            keys = [c + 0.3 * columns * z[r * columns + c] for c in range(columns)]
                            for c, old in enumerate(sorted_by(keys)):
                                after[r, c] = r * columns + old
                        z = Noise()(a if causal else 0, rows * columns, True)
                        final = {}
                        for c in range(columns):
                            keys = [r + 0.3 * rows * z[r * columns + c] for r in range(height)]
                            for r, old in enumerate(sorted_by(keys)):
                                final[r, c] = after[old, c]
                        sources = [final[r, c] for r in range(begin, end) for c in range(columns)]
                        queries = range(begin * columns, end * columns)
                        expected |= {(i, j) for i in queries for j in sources if not causal or j <= i}
                    places = {i for i, v in enumerate(valid) if v}
                    expected = {(i, j) for i, j in expected if i in places and j in places}
                    found = patterns.ssa_grid(valid, (rows, columns), windows, 0.3, Noise(), causal)
                    self.assertEqual(pairs(found), expected, (name, windows, causal))

    def test_a_window_draws_for_its_own_past(self):
        noise = Noise()
        patterns.ssa_local_causal(VALID["full"], LENGTH, 5, 0.2, noise)
        self.assertEqual(noise.calls, [(a, min(5 * a + 5, LENGTH), False) for a in range(5)])
        noise = Noise()
        patterns.ssa_grid(VALID["short"], (6, 4), 4, 0.2, noise, True)
        ends = [(a + 1) * 6 // 4 * 4 for a in range(4)]
        self.assertEqual(noise.calls, [(a, end, rows) for a, end in enumerate(ends) for rows in (False, True)])

    def test_a_growing_text_changes_no_earlier_row(self):
        full, adaptive = VALID["full"], {"block_size": {"min": 2, "max": 9, "alpha": 0.29}, "pattern": "local"}
        for end in range(1, LENGTH):
            for whole, part in (
                (patterns.ssa_local_causal(v, LENGTH, 5, 0.2, Noise()) for v in (full, full[:end])),
                (patterns.ssa_none_causal(v, LENGTH, 4, sort_keys) for v in (full, full[:end])),
                (patterns.ssa_grid(v, (6, 4), 4, 0.2, Noise(), True) for v in (full, full[:end])),
                (patterns.block(v, adaptive, LENGTH, True) for v in (full, full[:end])),
            ):
                np.testing.assert_array_equal(whole[:end, :end], part)

    def test_sigma_is_linear_between_the_first_and_the_last_layer(self):
        self.assertEqual([patterns.sigma_of_layer(0.2, layer, 3) for layer in range(3)], [0.2] * 3)
        found = [patterns.sigma_of_layer([0.2, 0.8], layer, 4) for layer in range(4)]
        np.testing.assert_allclose(found, [0.2, 0.4, 0.6, 0.8], atol=1e-15)


class BlockTest(unittest.TestCase):
    def test_patterns_by_hand(self):
        blocks = [[0, 1], [1, 1], [2, 0], [2, 7], [9, 0]]
        scores = np.random.default_rng(1).standard_normal((8, 8))
        rules = (
            ({"pattern": "diagonal"}, lambda r, c: r == c),
            ({"pattern": "local"}, lambda r, c: abs(r - c) <= 1),
            ({"pattern": "local", "width": 2}, lambda r, c: abs(r - c) <= 2),
            ({"pattern": "local", "width": 0}, lambda r, c: r == c),
            ({"pattern": "strided", "stride": 3}, lambda r, c: (r - c) % 3 == 0),
            ({"pattern": "first_and_diagonal"}, lambda r, c: c == 0 or r == c),
            ({"pattern": "list", "blocks": blocks}, lambda r, c: [r, c] in blocks),
            ({"pattern": "learned", "threshold": 0.6}, lambda r, c: 1 / (1 + math.exp(-scores[r, c])) >= 0.6),
        )
        for name, valid in VALID.items():
            for attention, rule in rules:
                for size in (3, 5, 24, 40):
                    for causal in (False, True):
                        places = [i for i, v in enumerate(valid) if v]
                        expected = {
                            (i, j)
                            for i in places
                            for j in places
                            if rule(i // size, j // size) and (j <= i or not causal)
                        }
                        found = patterns.block(valid, {**attention, "block_size": size}, LENGTH, causal, scores)
                        self.assertEqual(pairs(found), expected, (name, attention, size, causal))

    def test_one_block_is_dense(self):
        for valid in VALID.values():
            for causal in (False, True):
                found = patterns.block(valid, {"pattern": "diagonal", "block_size": 99}, LENGTH, causal)
                np.testing.assert_array_equal(found, patterns.dense(valid, causal))

    def test_alpha_is_the_decimal_number_that_is_written(self):
        for alpha, length, expected in (
            (0.29, 100, 29),
            (0.57, 100, 57),
            (0.07, 100, 7),
            (0.1, 30, 3),
            (1e-3, 1000, 1),
            (0.35, 48, 16),
            (2, 7, 14),
        ):
            self.assertEqual(patterns.block_size({"min": 1, "max": 1000, "alpha": alpha}, length), expected)
        self.assertEqual(patterns.block_size({"min": 8, "max": 16, "alpha": 0.1}, 10), 8)
        self.assertEqual(patterns.block_size({"min": 8, "max": 16, "alpha": 0.5}, 100), 16)

    def test_the_length_of_an_adaptive_size(self):
        """Positions without trailing pads; the longest input where causal."""
        adaptive = {"block_size": {"min": 1, "max": 99, "alpha": 0.25}, "pattern": "diagonal"}
        for name, size in (("full", 6), ("short", 4), ("pads", 5)):
            valid = VALID[name]
            for causal, expected in ((False, size), (True, 6)):
                fixed = patterns.block(valid, {**adaptive, "block_size": expected}, LENGTH, causal)
                np.testing.assert_array_equal(patterns.block(valid, adaptive, LENGTH, causal), fixed, name)

    def test_trailing_pads_change_nothing(self):
        adaptive = {"block_size": {"min": 1, "max": 99, "alpha": 0.25}, "pattern": "local"}
        for attention in (adaptive, {"block_size": 5, "pattern": "strided", "stride": 2}):
            for causal in (False, True):
                short = patterns.block(VALID["short"], attention, LENGTH, causal)
                padded = patterns.block(np.arange(23) < 17, attention, LENGTH, causal)
                np.testing.assert_array_equal(padded[:17, :17], short)
                self.assertEqual(padded.sum(), short.sum())


if __name__ == "__main__":
    unittest.main()
