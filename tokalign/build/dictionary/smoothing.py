"""Probabilities of token n-grams: a rare context does not look certain.

Every n-gram gives a little of its count away, and what a context's n-grams give away is shared out
as the next shorter context has it:

    p(w | context) = (max(count - D, 0) + (D * T + A) * p(w | shorter context)) / (total + A)

T is the number of different ids behind the context. Example, D = 0.9 and A = 0.5: seen three times,
always followed by the same id, which the shorter context gives 0.1, it has 0.64, not 1.
Source: interpolated absolute discounting (Ney, Essen and Kneser, 1994) with the concentration A of
Teh's hierarchical Pitman-Yor model (2006), and plain counts in the shorter contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tokalign.build.dictionary.ngram_tree import Floats, Level

DISCOUNT = 0.9
CONCENTRATION = 0.5

OPTIMISM = 0.5
"""By how much, in log-odds, the best prediction of a context is less often right in other text.

It was chosen for being the best in the text that was counted. Measured on lines held out of five
corpora of Polish: between 0.4 and 0.7 at every probability, whatever the length of the context.
"""


def smooth(levels: Sequence[Level]) -> tuple[list[Floats], list[Floats]]:
    """For each order: p(last id | prefix) of each n-gram, and what each n-gram, taken as a
    context, leaves to the next shorter one (the weight of p(w | shorter context) above).

    Contexts of the highest order leave everything to shorter ones.
    """
    probabilities = [levels[0].counts / levels[0].counts.sum()]
    left: list[Floats] = []
    for contexts, continued in pairwise(levels):
        weight = _left(contexts, continued)
        left.append(weight)
        own = np.maximum(continued.counts - DISCOUNT, 0)
        own /= contexts.counts[continued.prefix] + CONCENTRATION
        shorter = probabilities[-1][continued.suffix]
        probabilities.append(own + weight[continued.prefix] * shorter)
    left.append(np.ones(len(levels[-1]), dtype=np.float32))
    return probabilities, left


def sobered(probabilities: Floats) -> Floats:
    """Probabilities as they turn out in other text: their log-odds less `OPTIMISM`."""
    odds = probabilities * np.float32(np.exp(-OPTIMISM))
    return np.asarray(odds / (1 - probabilities + odds), dtype=np.float32)


def _left(contexts: Level, continued: Level) -> Floats:
    """(D * T + A) / (total + A) of every context.

    What was seen behind a context too rarely to be kept as an n-gram counts as one kind each.
    """
    size = len(contexts)
    kinds = np.bincount(continued.prefix, minlength=size)
    kept = np.bincount(continued.prefix, weights=continued.counts, minlength=size)
    kinds = kinds + np.maximum(contexts.counts - kept, 0)
    share = (DISCOUNT * kinds + CONCENTRATION) / (contexts.counts + CONCENTRATION)
    return np.asarray(np.minimum(share, 1), dtype=np.float32)
