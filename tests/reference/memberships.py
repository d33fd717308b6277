"""How likely the pairs of an sbm layer are edges: p = sigmoid(m(q) C^T) S sigmoid(m(k) C^T)^T and the laws."""

import numpy as np


def membership(z: np.ndarray, weights: tuple, clusters: np.ndarray) -> np.ndarray:
    """z [h, n, d]; weights: W0, b0, W1, b1 of the node MLP; clusters [h, k, d]. Returns [h, n, k]."""
    w0, b0, w1, b1 = weights
    z = np.maximum(z @ w0.T + b0, 0.0) @ w1.T + b1
    return 1.0 / (1.0 + np.exp(-(z @ clusters.transpose(0, 2, 1))))


def block_matrix(clusters: np.ndarray) -> np.ndarray:
    """S where it is not given: the softmax over all entries of C C^T, [h, k, k]."""
    products = clusters @ clusters.transpose(0, 2, 1)
    weights = np.exp(products - products.max(axis=(1, 2), keepdims=True))
    return weights / weights.sum(axis=(1, 2), keepdims=True)


def edge_rates(query: np.ndarray, key: np.ndarray, block: np.ndarray, attention: dict, pairs: np.ndarray) -> np.ndarray:
    """p with the exploration, 0 where a pad is part of the pair. query, key [h, n, k]. Returns [h, n, n]."""
    p = query @ block @ key.transpose(0, 2, 1) + attention.get("exploration", 0.0)
    return np.where(pairs, np.minimum(p, 1.0), 0.0)


def edge_probabilities(rates: np.ndarray, attention: dict, pairs: np.ndarray) -> np.ndarray:
    """How likely a pair is an edge under the law and with the forced edges, [h, n, n]."""
    p = rates
    if attention["law"] != "bernoulli":  # Poisson counts, of which "at least one" is an edge
        p = -np.expm1(-p)
    n = len(pairs)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    forced = (distance == 0) & attention.get("self_loops", False)
    window = attention.get("local_window", 0)
    if window > 0:
        forced |= 2 * distance <= window
    return np.where(forced & pairs, 1.0, p)
