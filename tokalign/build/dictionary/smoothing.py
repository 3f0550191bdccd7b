"""Probabilities of token n-grams, smoothed so that a rare context does not look certain.

Every n-gram gives up a little of its count. What the n-grams of a context give up is shared out in
proportion to the probabilities in the next shorter context:

    p(w | context) = (max(count - D, 0) + (D * T + A) * p(w | shorter context)) / (total + A)

T is the number of different ids seen after the context. Example, with D = 0.9 and A = 0.5: a
context was seen three times, always followed by the same id, which has probability 0.1 in the
shorter context. Its probability here is 0.64, not 1.
Source: interpolated absolute discounting (Ney, Essen and Kneser, 1994) with the concentration A of
Teh's hierarchical Pitman-Yor model (2006), and plain counts in the shorter contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tokalign.build.dictionary.ngram_tree import Floats, Level

DISCOUNT = 0.9
CONCENTRATION = 0.5

Smoothed: TypeAlias = tuple[Sequence[Floats], Sequence[Floats]]
"""The probabilities and the back-off weights that `smooth` gives."""


def smooth(levels: Sequence[Level]) -> Smoothed:
    """For each order, p(last id | prefix) of each n-gram, and the back-off weight of each n-gram.

    The back-off weight of an n-gram that is a context is the factor of p(w | shorter context)
    above. For the highest order it is 1.
    """
    if not levels:
        return [], []
    probabilities = [levels[0].counts / levels[0].counts.sum()]
    weights: list[Floats] = []
    for contexts, continued in pairwise(levels):
        weight = _backoff_weights(contexts, continued)
        weights.append(weight)
        own = np.maximum(continued.counts - DISCOUNT, 0)
        own /= contexts.counts[continued.prefix] + CONCENTRATION
        shorter = probabilities[-1][continued.suffix]
        probabilities.append(own + weight[continued.prefix] * shorter)
    weights.append(np.ones(len(levels[-1]), dtype=np.float32))
    return probabilities, weights


def in_other_text(probabilities: Floats, optimism: float) -> Floats:
    """The probabilities to expect in text that was not counted: log-odds less `optimism`."""
    odds = probabilities * np.float32(np.exp(-optimism))
    return np.asarray(odds / (1 - probabilities + odds), dtype=np.float32)


def _backoff_weights(contexts: Level, continued: Level) -> Floats:
    """(D * T + A) / (total + A) of every context.

    Occurrences of n-grams that were too rare to be kept count as one different id each.
    """
    size = len(contexts)
    kinds = np.bincount(continued.prefix, minlength=size)
    kept = np.bincount(continued.prefix, weights=continued.counts, minlength=size)
    kinds = kinds + np.maximum(contexts.counts - kept, 0)
    share = (DISCOUNT * kinds + CONCENTRATION) / (contexts.counts + CONCENTRATION)
    return np.asarray(np.minimum(share, 1), dtype=np.float32)
