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
proposes beside the first. One takes as many bytes as a context and has the same price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.ngram_tree import MISSING, Floats, NgramLevel, in_other_text, smooth
from tokalign.build.counting.windows import IdArray

ROW_COST = 0.05
"""What a verified row costs, in passes of the target."""

RARELY_SEEN = 0.5
"""A context is met in new text as often as it was counted, less this."""

_FIRST = 0.4
"""The share of tokens that begin a chain: they are proposed if their own probability is at least
p_min. For all others that of the whole chain has to be, and the chain so far is assumed to have a
log-uniform probability between p_min and 1."""

_LEAST = float(np.finfo(np.float32).tiny)
"""The least p_min that is divided by; a smaller one would be 0 among probabilities."""

ALTERNATIVES = 2
"""The most ids that a context has besides the most probable one."""

_ALTERNATIVE_WORTH = 0.1
"""What a pass saved by an alternative counts: only trees propose it, where rows are cheap."""

_PRECISION = 1e-3  # relative, of the price of an entry
_UNFILLED = 1 / 500  # the share of the room that may stay empty

Choice = TypeVar("Choice")
Mask = NDArray[np.bool_]
"""Which contexts of one length are kept."""


class Predictions(NamedTuple):
    """The most probable next id of each context of one length; probability 0 where unknown."""

    ids: IdArray
    probabilities: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The contexts of one length to be stored. rank: 0 for the most probable next ids, 1 and 2 for
    alternatives. nodes: indices into the level of their n-grams. ids: of the next token."""

    length: int
    rank: int = 0
    nodes: NDArray[np.int64]
    ids: IdArray
    probabilities: Floats


class ContextCandidates:
    """What could be stored after each context of these n-grams, and what it is worth."""

    def __init__(self, levels: Sequence[NgramLevel], p_min: float) -> None:
        smoothed, weights = smooth(levels)
        likely = [smoothed[0], *map(in_other_text, smoothed[1:])] if smoothed else []
        self.predictions = ranked_predictions(levels, likely)  # by rank and length
        best, *others = self.predictions
        self._suffixes = [level.suffix for level in levels[:-1]]
        self._counts = [level.counts for level in levels[:-1]]
        self._gained = gains(levels, likely, weights, best, p_min=p_min)
        # What alternatives of each rank save at an occurrence.
        self._worth = [[_alternative_worth(own, p_min) for own in ranked] for ranked in others]

    def best(self, entries: int) -> list[Entries]:
        """The best `entries` predictions at most, by rank and length, with their suffixes."""
        best = fill(self._worth_more_than, _total, entries)
        return [
            _entries(length, rank, mask, own)
            for rank, (masks, known) in enumerate(zip(best, self.predictions, strict=True))
            for length, (mask, own) in enumerate(zip(masks, known, strict=True), start=1)
        ]

    def _worth_more_than(self, price: float) -> list[list[Mask]]:
        """For each rank masks by length. Alternatives are kept only with the best id."""
        kept = keep_above(self._suffixes, self._gained, price)
        alone = occurrences(self._suffixes, self._counts, kept)
        alternatives = [
            [times * value > price for times, value in zip(alone, values, strict=True)]
            for values in self._worth
        ]
        return [kept, *alternatives]


def fill(choose: Callable[[float], Choice], size: Callable[[Choice], float], room: float) -> Choice:
    """What is chosen at about the lowest price at which it fits into `room`.

    choose: gives less at a higher price, and in the end nothing.
    """
    low, high = 0.0, 1.0
    best = choose(low)
    if size(best) <= room:
        return best
    while size(best := choose(high)) > room:
        low, high = high, 4 * high
    while high - low > _PRECISION * high and size(best) < (1 - _UNFILLED) * room:
        price = (low + high) / 2
        trial = choose(price)
        if size(trial) <= room:
            high, best = price, trial
        else:
            low = price
    return best


def _entries(length: int, rank: int, mask: Mask, predictions: Predictions) -> Entries:
    nodes = np.flatnonzero(mask)
    likely = predictions.probabilities[nodes]
    known = np.where(likely > 0, predictions.ids[nodes], 0)
    return Entries(length=length, rank=rank, nodes=nodes, ids=known, probabilities=likely)


def ranked_predictions(
    levels: Sequence[NgramLevel], probabilities: Sequence[Floats]
) -> list[list[Predictions]]:
    """The most probable next ids, then the alternatives by rank, by length of the context."""
    ranks: list[list[Predictions]] = []
    remaining = probabilities[1:]
    for _ in range(1 + ALTERNATIVES):
        ranks.append([*map(_best, map(len, levels), levels[1:], remaining)])
        remaining = [
            np.where(continued.last == best.ids[continued.prefix], 0, likely)
            for continued, best, likely in zip(levels[1:], ranks[-1], remaining, strict=True)
        ]
    return ranks


def _best(contexts: int, continued: NgramLevel, probabilities: Floats) -> Predictions:
    ids = np.zeros(contexts, dtype=continued.last.dtype)
    highest = np.zeros(contexts, dtype=np.float32)
    np.maximum.at(highest, continued.prefix, probabilities)
    # Ties go to the lowest id, so it is written last.
    winners = np.flatnonzero(probabilities == highest[continued.prefix])[::-1]
    ids[continued.prefix[winners]] = continued.last[winners]
    return Predictions(ids, highest)


def gains(
    levels: Sequence[NgramLevel],
    probabilities: Sequence[Floats],
    weights: Sequence[Floats],
    predictions: Sequence[Predictions],
    *,
    p_min: float,
) -> list[Floats]:
    """What each context gains over its suffix, in passes saved when the corpus is decoded.

    A proposed prediction costs a row, and saves a pass if it is right. How often it is proposed
    follows from the stored probability; how often it is right, from its probability in this
    context.
    probabilities, weights: see `smooth`. Cost: about 1 µs per context.
    """
    gained: list[Floats] = []
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
        gained.append(value.astype(np.float32))
    return gained


def _value(stored: Floats, right: Floats, p_min: float) -> Floats:
    """Passes saved per occurrence: the chance of being proposed times what that gains."""
    p_min, depth = max(p_min, _LEAST), np.ones_like(stored)
    if p_min < 1:
        likely = np.maximum(stored.astype(np.float64), p_min)  # as in `number_predictions`
        depth = (np.log(likely / p_min) / np.log(1 / p_min)).astype(np.float32)
    proposed = np.where(stored >= p_min, _FIRST + (1 - _FIRST) * depth, 0)
    return np.asarray(proposed * (right - ROW_COST), dtype=np.float32)


def _alternative_worth(predictions: Predictions, p_min: float) -> Floats:
    likely = predictions.probabilities
    return np.float32(_ALTERNATIVE_WORTH) * _value(likely, likely, p_min)


def occurrences(
    suffixes: Sequence[NDArray[np.integer]], counts: Sequence[Floats], kept: Sequence[Mask]
) -> list[Floats]:
    """How often each context was the longest one that is kept; 0 for those that are not kept."""
    alone = [np.where(mask, times, 0) for mask, times in zip(kept, counts, strict=True)]
    for length in range(1, len(kept)):
        nodes = np.flatnonzero(kept[length])
        alone[length - 1] -= np.bincount(
            suffixes[length][nodes], weights=counts[length][nodes], minlength=len(alone[length - 1])
        )
    return alone


def keep_above(
    suffixes: Sequence[NDArray[np.integer]], gained: Sequence[Floats], price: float
) -> list[Mask]:
    """The set, closed under suffixes, with the highest sum of gains less `price` per context."""
    worth = [gain.astype(np.float64) - price for gain in gained]
    for length in range(len(worth) - 1, 0, -1):
        worth[length - 1] += np.bincount(
            suffixes[length], weights=np.maximum(worth[length], 0), minlength=len(worth[length - 1])
        )
    kept = [value > 0 for value in worth]
    for length in range(1, len(kept)):
        kept[length] &= kept[length - 1][suffixes[length]]
    return kept


def _total(ranks: Sequence[Sequence[Mask]]) -> int:
    return sum(int(mask.sum()) for masks in ranks for mask in masks)
