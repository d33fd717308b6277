"""Edges that are drawn by events, after docs/random-numbers.md: one number at a time, in Python.

Memberships of golden cases are small whole numbers over a power of two, so that every language makes the same.
"""

import math
import struct

import numpy as np

from philox import philox4x32

BERNOULLI, POISSON_SET, POISSON_MULTI = range(3)
EVENTS, FRACTIONS = 5, 6  # streams
ONE = 1 << 31  # ages

_F = np.float32
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)


def _fma(a, b, c) -> np.float32:
    """In 64 bits, which is exact but for ties that no case meets."""
    return _F(np.longdouble(a) * np.longdouble(b) + np.longdouble(c))


def _bits(value: np.float32) -> int:
    return struct.unpack("<I", struct.pack("<f", float(value)))[0]


def _from_bits(bits: int) -> np.float32:
    return _F(struct.unpack("<f", struct.pack("<I", bits))[0])


def dot(x: np.ndarray, y: np.ndarray) -> np.float32:
    """<x, y> in the order of the specification: 16 lanes."""
    lanes = np.zeros(16, _F)
    for t in range(0, len(x), 16):
        lanes = (x[t:t + 16].astype(np.longdouble) * y[t:t + 16] + lanes).astype(_F)
    for step in (8, 4, 2, 1):
        lanes = lanes[:step] + lanes[step:2 * step]
    return lanes[0]


def exponential(word: int) -> np.float32:
    """-ln((word | 1) / 2^32)."""
    whole = _bits(_F(word | 1))
    exponent = (whole - 0x3F3504F3) >> 23
    z = _from_bits(whole - (exponent << 23)) - _F(1)
    z2 = z * z
    p = _F(_LOG[0])
    for factor in _LOG[1:]:
        p = _fma(p, z, _F(factor))
    log = _fma(p * z, z2, _fma(_F(-0.5), z2, z))
    return _fma(_F(32 - exponent), _F(0.69314718056), -log)


def gap(word: int, mean_gap: np.float32) -> int:
    return int(min(_fma(exponential(word), mean_gap, _F(0.5)), _F(ONE)))


class Memberships:
    """The memberships of a golden case: values 1..7 times 2^-shift; with `hot` every 13th query and every 11th key is 8
    times as long. Query 1 is `longest` times as long."""

    def __init__(self, tokens: int, rank: int, shift: int, hot: bool, longest: int = 1):
        i, t = np.arange(tokens)[:, None], np.arange(rank)[None, :]
        unit = _F(2.0 ** -shift)
        self.x = ((1 + (i * 5 + t * 3) % 7) * np.where(hot & (i % 13 == 0), 8, 1)).astype(_F) * unit
        self.x[1] *= _F(longest)
        self.y = ((1 + (i * 5 + t * 3 + 2) % 7) * np.where(hot & (i % 11 == 0), 8, 1)).astype(_F) * unit


class Head:
    """The tables of a head."""

    def __init__(self, memberships: Memberships, law: int, exploration: float):
        self.x, self.y, self.law, self.delta = memberships.x, memberships.y, law, _F(exploration)
        self.tokens = n = len(self.x)
        query = [np.sqrt(dot(row, row) + self.delta) * _F(1.00001) for row in self.x]
        key = [np.sqrt(dot(row, row) + self.delta) * _F(1.00001) for row in self.y]
        query_max, key_max = max(query), max(key)
        self.query_mean, self.key_mean = self._mean(query, query_max), self._mean(key, key_max)
        self.sampled_mean = self._mean(query[::32], query_max)
        self.query_max = float(query_max)
        query_limit = key_limit = math.inf
        if law == BERNOULLI and float(query_max) * float(key_max) > 0.5:
            stretch = math.sqrt(0.5 / (self.query_mean * self.key_mean))
            query_limit, key_limit = _F(self.query_mean * stretch), _F(self.key_mean * stretch)
        self.heavy_keys = [j for j in range(n) if key[j] > key_limit]
        self.heavy_queries = [i for i in range(n) if query[i] > query_limit]
        light = max(bound for bound in query if bound <= query_limit)
        if law == BERNOULLI:
            weights = [_F(0) if j in self.heavy_keys else key[j] / (_F(1) - light * key[j]) * _F(1.000001)
                       for j in range(n)]
        else:
            weights = key
        unit = 2.0 ** 30 / float(max(weights))
        parts = [int(float(weight) * unit) + 1 if weight > 0 else 0 for weight in weights]
        part_width = ((2 ** 32 - 1 - n) << 32) // sum(parts)
        self.places = [0]
        for part in parts:
            self.places.append(self.places[-1] + ((part * part_width >> 32) + 1 if part else 0))
        scale = 2.0 ** 64 / (float(part_width) * unit) * 1.000001
        self.mean_gap = [
            _F(0) if i in self.heavy_queries else min(_F(ONE) / _F(float(query[i]) * scale), _F(2.0 ** 60))
            for i in range(n)
        ]

    @staticmethod
    def _mean(bounds: list, largest: np.float32) -> float:
        units = sum(int(bound * (_F(2 ** 24) / largest)) for bound in bounds)
        return units / len(bounds) * (float(largest) / 2 ** 24)

    def is_drawn_by_events(self) -> bool:
        """The rule for a head of at least 768 tokens without forced edges."""
        density = self.query_mean * self.key_mean
        if density > 1 / 33 or self.sampled_mean * self.key_mean > 1 / 33:
            return False
        if self.query_max * self.key_mean > 1:
            return False
        heavy = len(self.heavy_keys) + len(self.heavy_queries)
        return 20000 + 2050 * (self.tokens * density) + 15000 * heavy < 62 * self.tokens

    def rate(self, i: int, j: int) -> np.float32:
        return min(max(dot(self.x[i], self.y[j]), _F(0)) + self.delta, _F(1))


class Draw:
    """The random numbers of a head; a token's position is given by `position`."""

    def __init__(self, seed: int, sample: int, layer: int, head: int, side: int, position=lambda token: token):
        self.seed, self.sample, self.word, self.position = seed, sample, layer << 20 | head << 8 | side << 7, position

    def block(self, stream: int, counter: int, query: int) -> list:
        words = philox4x32([counter, self.position(query), self.word | stream, self.sample],
                           [self.seed & 0xFFFFFFFF, self.seed >> 32])
        return [int(word) for word in words]

    def events(self, head: Head, i: int) -> list:
        """(key, age) of the accepted events of query i, heavy pairs included."""
        if i in head.heavy_queries:
            return [event for j in range(head.tokens) for event in self._heavy_pair(head, i, j)]
        accepted, age = [], 0
        for number in range(1 << 20):
            words = self.block(EVENTS, number // 2, i)
            age += gap(words[number % 2 * 2], head.mean_gap[i])
            if age >= ONE:
                break
            place = words[number % 2 * 2 + 1]
            if place >= head.places[-1]:
                continue
            j = next(j for j in range(head.tokens) if head.places[j] <= place < head.places[j + 1])
            if self._accepts(head, i, j, number, age, head.places[j + 1] - 1 - place):
                accepted.append((j, age))
        return accepted + [event for j in head.heavy_keys for event in self._heavy_pair(head, i, j)]

    def _accepts(self, head: Head, i: int, j: int, number: int, age: int, distance: int) -> bool:
        rate = head.rate(i, j)
        places = rate * (_F(2) * head.mean_gap[i])
        s = _F(age) * _F(2.0 ** -31) if head.law == BERNOULLI else _F(0)
        left = _fma(-s, rate, _F(1))
        if (_F(distance) + _F(1)) * left <= places:
            return True
        if _F(distance) * left >= places:
            return False
        return (distance + self.block(FRACTIONS, number, i)[0] / 2 ** 32) * float(left) < float(places)

    def _heavy_pair(self, head: Head, i: int, j: int) -> list:
        column, position = self.position(j) % 64, self.position(j)
        octet = self.block(0, position // 64 * 4 + column % 8 // 2, i)
        index = column // 8 * 2 + column % 2
        uniform = (octet[index // 4] >> (8 * (index % 4)) & 255) << 32 | self.block(1, position // 4, i)[position % 4]
        rate = float(head.rate(i, j))
        return [(j, int(uniform / 512 / rate))] if uniform < math.ceil(rate * 2 ** 40) else []
