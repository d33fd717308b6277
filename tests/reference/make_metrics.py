#!/usr/bin/env python3
"""Makes tests/client/metrics_golden.json: random answers and what they are worth, by the definitions in NumPy.

    /usr/bin/python3 tests/reference/make_metrics.py [file]

Each measure is written as its definition reads: pairs are counted one by one, ranks are means over equal values.
The output depends on nothing but this file.
"""

import json
import os
import sys

import numpy as np

COUNT, CLASSES, BINS = 60, 4, 15


def macro_f1(labels, answers):
    scores = []
    for one in sorted(set(labels) | set(answers)):
        hits = np.sum((labels == one) & (answers == one))
        missed, wrong = np.sum((labels == one) & (answers != one)), np.sum((labels != one) & (answers == one))
        scores.append(hits / (hits + (missed + wrong) / 2))
    return np.mean(scores)


def multi_label_macro_f1(labels, answers):
    """Rows of yes and no, a column for each class; all classes occur."""
    return np.mean([2 * np.sum(a & b) / (np.sum(a) + np.sum(b)) for a, b in zip(labels.T, answers.T)])


def calibration_error(confidences, right):
    edges = np.arange(BINS + 1) / BINS
    error = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (confidences > low) & (confidences <= high)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidences[inside].mean())
    return error


def auroc(scores, positive):
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in scores[positive] for n in scores[~positive]]
    return np.mean(wins)


def rank_correlation(a, b):
    ranks = [np.array([np.mean(1 + np.flatnonzero(np.sort(x) == value)) for value in x]) for x in (a, b)]
    return np.corrcoef(*ranks)[0, 1]


def main():
    random = np.random.default_rng(7)
    labels, answers = random.integers(0, CLASSES, COUNT), random.integers(0, CLASSES, COUNT)
    answers = np.where(random.random(COUNT) < 0.6, labels, answers)
    right = answers == labels
    confidences = np.round(0.25 + 0.75 * random.random(COUNT), 3)
    entropies = np.round(random.random(COUNT) + 0.3 * ~right, 1)  # with ties
    values = np.round(np.where(random.random(COUNT) < 0.5, entropies, random.random(COUNT)), 1)
    label_rows = random.random((COUNT, CLASSES)) < 0.3
    answer_rows = label_rows ^ (random.random((COUNT, CLASSES)) < 0.2)
    golden = {
        "labels": labels.tolist(), "answers": answers.tolist(), "confidences": confidences.tolist(),
        "entropies": entropies.tolist(), "values": values.tolist(),
        "macro_f1": float(macro_f1(labels, answers)),
        "calibration_error": float(calibration_error(confidences, right)),
        "auroc": float(auroc(entropies, ~right)),
        "rank_correlation": float(rank_correlation(entropies, values)),
        "label_sets": [np.flatnonzero(row).tolist() for row in label_rows],
        "answer_sets": [np.flatnonzero(row).tolist() for row in answer_rows],
        "multi_label_macro_f1": float(multi_label_macro_f1(label_rows, answer_rows)),
    }
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "client")
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "metrics_golden.json"), "w") as file:
        file.write(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
