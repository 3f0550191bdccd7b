"""The chi-square test for distributions over few outcomes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

Floats = NDArray[np.float64]


def p_value(counts: Floats, distribution: Floats) -> float:
    """How often counts would be at least as far off if they were drawn from the distribution.

    Outcomes expected fewer than five times are counted together. An impossible outcome that
    occurred gives 0.
    """
    counts = counts.ravel()
    expected = distribution.ravel() / distribution.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    common = expected >= 5
    found = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    return float(chisquare(found[wanted > 0], wanted[wanted > 0]).pvalue)
