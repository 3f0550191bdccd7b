"""Which contexts are worth their bytes.

Contexts form a tree: the parent of a context is its suffix, the same text with the first id left
out. Reading a context's own prediction instead of its parent's changes what is gained at each of
its occurrences; these changes add up, because whoever reads a longer context has it measured
against this one. So the value of a set of contexts is the sum of their gains, and the best set at a
price per entry is found bottom-up: a context is kept if it and the best of what hangs on it gain
more than they cost. A context that says what its suffix says gains next to nothing, and stays only
where a longer one hangs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.dictionary.ngram_tree import MISSING, Floats, Level

ROW_COST = 0.05
"""What a verified row costs, in passes of the target."""

_RARELY_SEEN = 0.5
"""How much less often a context is met in new text than it was counted."""

_FIRST = 0.4
"""How often a token is the first of its chain, so that a likely enough one is proposed; in all
other cases the chain's probability so far decides, taken as log-uniform down to p_min."""

_PRECISION = 1e-3
"""To what part of itself the price of an entry is found."""

_UNFILLED = 1 / 500
"""How much of the room may stay empty."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The likeliest next id of each context of one length.

    ids: [contexts], of no meaning where nothing is known. probabilities: f32[contexts], 0 there.
    """

    ids: NDArray[Any]
    probabilities: Floats


def best_predictions(levels: Sequence[Level], probabilities: Sequence[Floats]) -> list[Predictions]:
    """For contexts of length 1, 2, ...: one length less than there are orders."""
    return [
        _best(len(contexts), continued, likely)
        for contexts, continued, likely in zip(levels, levels[1:], probabilities[1:], strict=False)
    ]


def _best(contexts: int, continued: Level, probabilities: Floats) -> Predictions:
    ids = np.zeros(contexts, dtype=continued.last.dtype)
    highest = np.zeros(contexts, dtype=np.float32)
    np.maximum.at(highest, continued.prefix, probabilities)
    # Of equals the lowest id: written last.
    winners = np.flatnonzero(probabilities == highest[continued.prefix])[::-1]
    ids[continued.prefix[winners]] = continued.last[winners]
    return Predictions(ids=ids, probabilities=highest)


def gains(
    levels: Sequence[Level],
    probabilities: Sequence[Floats],
    left: Sequence[Floats],
    predictions: Sequence[Predictions],
    *,
    p_min: float,
) -> list[Floats]:
    """What each context gains over its suffix, in passes saved if the corpus were decoded.

    A prediction that is proposed saves a pass if it is right and costs a row. How often it is
    proposed depends on its probability as stored, how often it is right on its probability here.
    Cost: about 1 µs per context.
    """
    found: list[Floats] = []
    for length, (level, own) in enumerate(zip(levels, predictions, strict=False), start=1):
        value = _value(own.probabilities, own.probabilities, p_min)
        if length > 1:
            shorter = predictions[length - 2]
            claimed = shorter.probabilities[level.suffix]
            at = levels[length].find(np.arange(len(level)), shorter.ids[level.suffix])
            here = np.where(at == MISSING, left[length - 1] * claimed, probabilities[length][at])
            value -= _value(claimed, here, p_min)
        value *= np.maximum(level.counts - _RARELY_SEEN, 0)
        value[own.probabilities == 0] = -np.inf
        found.append(value.astype(np.float32))
    return found


def _value(stored: Floats, right: Floats, p_min: float) -> Floats:
    """Passes saved per occurrence: how often it is proposed times what that gains."""
    depth = np.log(np.maximum(stored, p_min) / p_min) / np.log(1 / p_min)
    proposed = np.where(stored >= p_min, _FIRST + (1 - _FIRST) * depth, 0)
    return np.asarray(proposed * (right - ROW_COST), dtype=np.float32)


def keep_best(levels: Sequence[Level], gained: Sequence[Floats], entries: int) -> list[Mask]:
    """Masks over the contexts of each length: the best set of at most `entries`.

    The suffix of a kept context is kept. The price per entry is found by bisection.
    """
    suffixes = [level.suffix for level in levels[: len(gained)]]
    low, high = 0.0, 1.0
    kept = keep_above(suffixes, gained, low)
    if _total(kept) <= entries:
        return kept
    while _total(kept := keep_above(suffixes, gained, high)) > entries:
        low, high = high, 4 * high
    while high - low > _PRECISION * high and _total(kept) < (1 - _UNFILLED) * entries:
        price = (low + high) / 2
        trial = keep_above(suffixes, gained, price)
        if _total(trial) <= entries:
            high, kept = price, trial
        else:
            low = price
    return kept


def keep_above(
    suffixes: Sequence[NDArray[Any]], gained: Sequence[Floats], price: float
) -> list[Mask]:
    """The set with the highest sum of gains less `price` per context, closed under suffixes."""
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


def _total(masks: Sequence[Mask]) -> int:
    return sum(int(mask.sum()) for mask in masks)
