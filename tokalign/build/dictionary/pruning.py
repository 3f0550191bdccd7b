"""Choosing which contexts are worth their bytes.

Contexts form a tree: the parent of a context is its suffix, the same ids without the first. If a
context is stored, its own prediction is read wherever it occurs, and not that of its suffix. Its
*gain* is what that changes, summed over its occurrences. The gain of a longer context is measured
against this one, so gains add up: a set of contexts is worth the sum of its gains.

If every entry has the same price, the best set is found from the longest contexts to the shortest.
A context is kept if its gain, and the worth of the best set of longer contexts that end with it,
exceed its price. A context that predicts what its suffix predicts gains next to nothing; it is kept
only if longer contexts need it.

A kept context may also have *alternatives*: its second and third most probable ids, which a tree
proposes beside the first. One is kept where what it saves exceeds the same price. It takes as many
bytes as a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.ngram_tree import MISSING, Floats, Level
from tokalign.build.counting.windows import IdArray

ROW_COST = 0.05
"""What a verified row costs, in passes of the target."""

RARELY_SEEN = 0.5
"""A context is met in new text as often as it was counted, less this."""

_FIRST = 0.4
"""The share of tokens that are the first of their chain: such a token is proposed if its own
probability is at least p_min. For all others that of the whole chain has to be, and the chain so
far is assumed to have a log-uniform probability between p_min and 1."""

_LEAST = float(np.finfo(np.float32).tiny)
"""The least p_min that is divided by; a smaller one would be 0 among probabilities."""

ALTERNATIVES = 2
"""The most ids that a context has besides the most probable one."""

_ALTERNATIVE_WORTH = 0.1
"""What a pass saved by an alternative counts, beside one saved by the best id of a context. Chains
never propose alternatives, and trees do only where rows are cheap."""

_PRECISION = 1e-3
"""The relative precision to which the price of an entry is found."""

_UNFILLED = 1 / 500
"""The share of the room that may stay empty."""

Mask = NDArray[np.bool_]
"""Which contexts of one length are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The most probable next id of each context of one length.

    ids: [contexts]. probabilities: f32[contexts]; 0 where nothing is known, and then the id means
    nothing.
    """

    ids: IdArray
    probabilities: Floats


def ranked_predictions(
    levels: Sequence[Level], probabilities: Sequence[Floats]
) -> list[list[Predictions]]:
    """The most probable next ids, then the alternatives by rank.

    Each for contexts of each length from 1 on; there is one length less than there are orders.
    """
    found: list[list[Predictions]] = []
    left = probabilities[1:]
    for _ in range(1 + ALTERNATIVES):
        found.append([*map(_best, map(len, levels), levels[1:], left)])
        left = [
            np.where(continued.last == best.ids[continued.prefix], 0, likely)
            for continued, best, likely in zip(levels[1:], found[-1], left, strict=True)
        ]
    return found


def _best(contexts: int, continued: Level, probabilities: Floats) -> Predictions:
    ids = np.zeros(contexts, dtype=continued.last.dtype)
    highest = np.zeros(contexts, dtype=np.float32)
    np.maximum.at(highest, continued.prefix, probabilities)
    # Ties go to the lowest id, so it is written last.
    winners = np.flatnonzero(probabilities == highest[continued.prefix])[::-1]
    ids[continued.prefix[winners]] = continued.last[winners]
    return Predictions(ids=ids, probabilities=highest)


def gains(
    levels: Sequence[Level],
    probabilities: Sequence[Floats],
    weights: Sequence[Floats],
    predictions: Sequence[Predictions],
    *,
    p_min: float,
) -> list[Floats]:
    """What each context gains over its suffix, in passes saved when the corpus is decoded.

    A proposed prediction costs a row, and saves a pass if it is right. How often it is proposed
    follows from the probability that is stored with it; how often it is right, from its probability
    in this context.
    probabilities, weights: see `smooth`. Cost: about 1 µs per context.
    """
    found: list[Floats] = []
    for length, (level, own) in enumerate(zip(levels, predictions, strict=False), start=1):
        value = _value(own.probabilities, own.probabilities, p_min)
        if length > 1:
            shorter = predictions[length - 2]
            claimed = shorter.probabilities[level.suffix]
            at = levels[length].find(np.arange(len(level)), shorter.ids[level.suffix])
            here = np.where(at == MISSING, weights[length - 1] * claimed, probabilities[length][at])
            value -= _value(claimed, here, p_min)
        value *= np.maximum(level.counts - RARELY_SEEN, 0)
        value[own.probabilities == 0] = -np.inf
        found.append(value.astype(np.float32))
    return found


def _value(stored: Floats, right: Floats, p_min: float) -> Floats:
    """Passes saved per occurrence: the chance of being proposed times what that gains."""
    p_min, depth = max(p_min, _LEAST), np.ones_like(stored)
    if p_min < 1:
        depth = np.log(np.maximum(stored, p_min) / p_min) / np.log(1 / p_min)
    proposed = np.where(stored >= p_min, _FIRST + (1 - _FIRST) * depth, 0)
    return np.asarray(proposed * (right - ROW_COST), dtype=np.float32)


def alternative_worth(predictions: Predictions, p_min: float) -> Floats:
    """What these alternatives save at each occurrence of their contexts; see `gains`."""
    likely = predictions.probabilities
    return np.float32(_ALTERNATIVE_WORTH) * _value(likely, likely, p_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Contexts that may be stored, by length, and what each gains.

    suffixes: of each, where it stands among those that are one id shorter. counts: how often each
    occurs. gained: what each gains over its suffix. worth: for each rank of alternatives what they
    save at an occurrence, falling with rank.
    """

    suffixes: Sequence[NDArray[np.integer]]
    counts: Sequence[Floats]
    gained: Sequence[Floats]
    worth: Sequence[Sequence[Floats]] = ()

    def keep(self, price: float) -> list[list[Mask]]:
        """For each rank masks by length: what is worth this price. The first rank is the best ids
        of contexts; others are kept only with these."""
        kept = keep_above(self.suffixes, self.gained, price)
        met = occurrences(self.suffixes, self.counts, kept)
        alternatives = [
            [times * value > price for times, value in zip(met, values, strict=True)]
            for values in self.worth
        ]
        return [kept, *alternatives]


def keep_best(some: Contexts, entries: int) -> list[list[Mask]]:
    """The best at most `entries` contexts and alternatives: for each rank masks by length.

    The first masks are those of the contexts, and contain the suffix of each of them. The price of
    an entry is found by bisection.
    """
    low, high = 0.0, 1.0
    best = some.keep(low)
    if _total(best) <= entries:
        return best
    while _total(best := some.keep(high)) > entries:
        low, high = high, 4 * high
    while high - low > _PRECISION * high and _total(best) < (1 - _UNFILLED) * entries:
        price = (low + high) / 2
        trial = some.keep(price)
        if _total(trial) <= entries:
            high, best = price, trial
        else:
            low = price
    return best


def occurrences(
    suffixes: Sequence[NDArray[np.integer]], counts: Sequence[Floats], kept: Sequence[Mask]
) -> list[Floats]:
    """How often each context was the longest one that is kept; 0 for those that are not kept.

    suffixes, counts: of the contexts of each length.
    """
    found = [np.where(mask, times, 0) for mask, times in zip(kept, counts, strict=True)]
    for length in range(1, len(kept)):
        nodes = np.flatnonzero(kept[length])
        found[length - 1] -= np.bincount(
            suffixes[length][nodes],
            weights=counts[length][nodes],
            minlength=len(found[length - 1]),
        )
    return found


def keep_above(
    suffixes: Sequence[NDArray[np.integer]], gained: Sequence[Floats], price: float
) -> list[Mask]:
    """The set, closed under suffixes, with the highest sum of gains less `price` per context."""
    worth = [gain.astype(np.float64) - price for gain in gained]
    for length in range(len(worth) - 1, 0, -1):
        worth[length - 1] += np.bincount(
            suffixes[length],
            weights=np.maximum(worth[length], 0),
            minlength=len(worth[length - 1]),
        )
    kept = [value > 0 for value in worth]
    for length in range(1, len(kept)):
        kept[length] &= kept[length - 1][suffixes[length]]
    return kept


def _total(ranks: Sequence[Sequence[Mask]]) -> int:
    return sum(int(mask.sum()) for masks in ranks for mask in masks)
