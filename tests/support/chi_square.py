"""Chi-square for laws on few outcomes, without scipy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def deviations(counts: Floats, law: Floats) -> float:
    """How many standard deviations chi-square lies above its mean; about 0 where the law is right.

    Outcomes expected fewer than five times are taken together. One that cannot come and did makes
    it infinite. A right implementation stays under 5 but once in some 10,000 runs (chi-square has
    a heavier tail than the normal distribution); seeds are fixed all the same.
    """
    counts, expected = counts.ravel(), law.ravel() * counts.sum()
    if counts[expected == 0].any():
        return float("inf")
    common = expected >= 5
    found = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    freedom = len(found) - 1
    return float((((found - wanted) ** 2 / wanted).sum() - freedom) / np.sqrt(2 * freedom))
