"""The arithmetic of an evaluation. Pure: no files, no processes."""
import math

import numpy as np

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def interval(values):
    """Mean and half width of its 95 % confidence interval; values: one per seed. The half width of one value is 0."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), 0.0
    t = T_975[len(values) - 2] if len(values) - 2 < len(T_975) else 1.96
    return float(values.mean()), float(t * values.std(ddof=1) / math.sqrt(len(values)))


def wilson(right, total):
    """The 95 % interval (Wilson) of a share that was seen `right` times in `total`: what the size of a test set leaves
    open."""
    z = 1.96
    share, scale = right / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return middle - half, middle + half


def adaptivity(expected, sampled):
    """How much the density follows the input, and how much the draw.

    expected [inputs]: expected density; sampled [inputs, draws]: density of each draw.
    -> (standard deviation of the expected density over inputs, root mean square over inputs of the standard deviation
    over draws, their quotient; None where the draws do not differ)
    """
    between = float(np.std(expected, ddof=1))
    within = float(np.sqrt(np.var(sampled, axis=1, ddof=1).mean()))
    return between, within, between / within if within > 0 else None


def density_caps(densities, step=0.02):
    """`densities` rounded down by at most `step`, so that few different caps serve many inputs."""
    powers = [math.floor(math.log(max(density, 1e-9)) / math.log1p(step) + 1e-9) for density in densities]
    return [min(1.0, (1 + step) ** power) for power in powers]


def evenly(count, most):
    """At most `most` of `count` indices, evenly spread, ascending; the same ones every time."""
    if count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]


READABLE = {"naive bayes": "naive Bayes", "logistic regression on counts": "logistic regression on token counts",
            "majority": "the most frequent label", "constant of first operator": "a constant per first operator",
            "first operator over all digits": "the first operator over all digits", "first digit": "the first digit"}


def baselines(trained):
    """{what: accuracy} of the rules that a recipe measured, out of tools/train/results/<name>.json."""
    found = {key[len("baseline_"):]: value for key, value in trained.items() if key.startswith("baseline_")}
    found.update(trained.get("baselines", {}))
    found = {key.replace("_", " "): value for key, value in found.items() if isinstance(value, (int, float))}
    return {READABLE.get(key, key): float(value) for key, value in found.items()}
