"""The choice of a generated token, written from docs/random-numbers.md: the whole vocabulary is sorted."""

import dataclasses

import numpy as np

MARGIN = 1e-4  # of sums around what they are compared with, so that no rounding decides


@dataclasses.dataclass
class Rules:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    seen: dict = dataclasses.field(default_factory=dict)  # token of the prompt or text: how often it was written


def softmax(logits: list) -> np.ndarray:
    powers = np.exp(np.asarray(logits, dtype=np.float64) - max(logits))
    return powers / powers.sum()


def entropy(probabilities: np.ndarray) -> float:
    return float(-np.sum(probabilities * np.log(probabilities)))


def scores(probabilities: np.ndarray, rules: Rules) -> np.ndarray:
    """ln of the probabilities, all above 0, after the penalties."""
    score = np.log(probabilities)
    for token, times in rules.seen.items():
        if times:
            score[token] -= rules.presence + rules.frequency * times
        score[token] *= rules.repetition if score[token] <= 0 else 1 / rules.repetition
    return score


def choose(probabilities: np.ndarray, rules: Rules, excluded: int, uniform: float):
    """The token; None where a score, a sum or a weight is within MARGIN of what it is compared with."""
    score = scores(probabilities, rules)
    order = sorted((token for token in range(len(score)) if token != excluded), key=lambda token: (-score[token], token))
    for a, b in zip(order, order[1:]):
        same = probabilities[a] == probabilities[b] and rules.seen.get(a) == rules.seen.get(b)
        if not same and score[a] - score[b] < MARGIN:
            return None
    if rules.temperature == 0.0:
        return order[0]
    weight = np.exp((score[order] - score[order[0]]) / rules.temperature)
    if rules.top_k:
        weight = weight[:rules.top_k]
    if rules.top_p:
        share = np.cumsum(weight) / weight.sum()
        if np.min(np.abs(share - rules.top_p)) < MARGIN:
            return None
        weight = weight[:1 + int(np.argmax(share > rules.top_p))]
    if rules.min_p:
        if np.min(np.abs(weight - rules.min_p)) < MARGIN:
            return None
        weight = weight[weight > rules.min_p]
    share = np.cumsum(weight) / weight.sum()
    if np.min(np.abs(share[:-1] - uniform), initial=1.0) < MARGIN:
        return None
    return order[int(np.argmax(share > uniform))]
