"""Choosing among a few ids on the host, as `sampling.py` does among all of them on the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def filtered(logprobs: Floats, *, top_p: float, min_p: float, top_k: int) -> NDArray[np.int64]:
    """Indices that mlx-lm's filters keep, the likeliest first; 0 switches a filter off.

    logprobs: f[n], up to a constant. Source: mlx_lm.sample_utils, its filters in its order.
    """
    order = np.argsort(-logprobs, kind="stable")
    ordered = logprobs[order]
    probabilities = np.exp(ordered - ordered[0])
    above = np.cumsum(probabilities) - probabilities
    left = np.ones(len(order), dtype=bool)
    if 0 < top_p < 1:
        left &= above < top_p * probabilities.sum()
    if min_p:
        left &= probabilities >= min_p
    if top_k:
        left[top_k:] = False
    return order[left]


def softmax(scores: Floats) -> Floats:
    """Probabilities f[n] that add up to 1."""
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())
