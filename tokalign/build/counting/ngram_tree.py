"""Token n-grams as two trees over the same nodes, by prefix and by suffix, and their probabilities.

The prefix of an n-gram (without its last id) is the context that it continues. Its suffix (without
its first id) is the same event in the next shorter context. Both are counted n-grams themselves.

Example (Bielik), from the lines "w Polsce" and "w Polskę":

    n-gram          prefix (the context)    suffix (the same in a shorter context)
    ▁w ▁Pol s       ▁w ▁Pol                 ▁Pol s
    ▁Pol s          ▁Pol                    s

Probabilities are smoothed so that a rare context does not look certain. What the n-grams of a
context give up of their counts is shared out in proportion to the probabilities in the next shorter
context:

    p(w | context) = (max(count - D, 0) + (D * T + A) * p(w | shorter context)) / (total + A)

T is the number of different ids seen after the context. Example, with D = 0.9 and A = 0.5: a
context was seen three times, always followed by the same id, which has probability 0.1 in the
shorter context. Its probability here is 0.64, not 1.
Source: interpolated absolute discounting (Ney, Essen and Kneser, 1994) with the concentration A of
Teh's hierarchical Pitman-Yor model (2006), and plain counts in the shorter contexts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.windows import IdArray, TokenNgrams, sortable

Indices = NDArray[np.uint32]
Floats = NDArray[np.float32]

MISSING = -1

_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramLevel:
    """The n-grams of one order, at least one, sorted by their ids.

    last: u16 or u32[k], the last id of each. counts: f32[k].
    prefix, suffix: u32[k], indices into the level of the next lower order (0 at order 1).
    keys: u64[k], sorted: prefix and last id as one number, to look n-grams up.
    """

    last: IdArray
    counts: Floats
    prefix: Indices
    suffix: Indices
    keys: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.counts)

    def find(self, prefix: NDArray[np.integer], last: NDArray[np.integer]) -> NDArray[np.int64]:
        """Indices of the n-grams with these prefixes and last ids; MISSING where there is none."""
        wanted = _keys(prefix, last)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self) - 1)
        return np.where(self.keys[at] == wanted, at, MISSING)


def grow_tree(orders: Iterable[TokenNgrams]) -> list[NgramLevel]:
    """Link the n-grams of each order, from order 1 on, to those of the next lower order. Cost:
    about 0.5 µs and 26 bytes per n-gram."""
    levels: list[NgramLevel] = []
    shorter: IdArray | None = None
    for ngrams in orders:
        if not len(ngrams):
            break
        levels.append(_link(ngrams, levels[-1] if levels else None, shorter))
        shorter = ngrams.ids
    return levels


def _link(ngrams: TokenNgrams, above: NgramLevel | None, shorter: IdArray | None) -> NgramLevel:
    last = np.ascontiguousarray(ngrams.ids[:, -1])
    if above is None or shorter is None:
        prefix = suffix = np.zeros(len(last), dtype=np.uint32)
    else:
        prefix = _find_prefixes(ngrams.ids, shorter)
        ends = above.suffix[prefix] if ngrams.ids.shape[1] > 2 else np.zeros_like(prefix)
        suffix = above.find(ends, last).astype(np.uint32)
    return NgramLevel(
        last=last,
        counts=ngrams.counts.astype(np.float32),
        prefix=prefix,
        suffix=suffix,
        keys=_keys(prefix, last),
    )


def _find_prefixes(ids: IdArray, shorter: IdArray) -> Indices:
    """For each row the index of its first n - 1 ids among the sorted rows of `shorter`."""
    changes = np.any(ids[1:, :-1] != ids[:-1, :-1], axis=1)
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    places = np.searchsorted(sortable(shorter), sortable(ids[starts, :-1]))
    return np.repeat(places, np.diff(starts, append=len(ids))).astype(np.uint32)


def _keys(prefix: NDArray[np.integer], last: NDArray[np.integer]) -> NDArray[np.uint64]:
    return prefix.astype(np.uint64) << _BITS | last.astype(np.uint64)


def walk_back(
    levels: list[NgramLevel], order: int, nodes: NDArray[np.integer]
) -> Iterator[NDArray[np.uint64]]:
    """The ids of these n-grams of one order, from the last to the first, each as u64[nodes]."""
    for level in levels[order - 1 :: -1]:
        yield level.last[nodes].astype(np.uint64)
        nodes = level.prefix[nodes]


DISCOUNT = 0.9
CONCENTRATION = 0.5

OPTIMISM = 0.5
"""The log-odds by which the best next id of a context is less likely in text that was not counted.
By length of context they are 0.3 to 2.0, which gains little (`lab/results/optimism.md`)."""


def smooth(levels: Sequence[NgramLevel]) -> tuple[list[Floats], list[Floats]]:
    """For each order, p(last id | prefix) and the back-off weight of each n-gram: as a context, its
    factor of p(w | shorter context) above; 1 for the highest order."""
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


def in_other_text(probabilities: Floats) -> Floats:
    """The probabilities to expect in text that was not counted: log-odds less `OPTIMISM`."""
    odds = probabilities * np.float32(np.exp(-OPTIMISM))
    return np.asarray(odds / (1 - probabilities + odds), dtype=np.float32)


def _backoff_weights(contexts: NgramLevel, continued: NgramLevel) -> Floats:
    """(D * T + A) / (total + A) of every context; each n-gram too rare to be kept is one of T."""
    size = len(contexts)
    kinds = np.bincount(continued.prefix, minlength=size)
    kept = np.bincount(continued.prefix, weights=continued.counts, minlength=size)
    kinds = kinds + np.maximum(contexts.counts - kept, 0)
    share = (DISCOUNT * kinds + CONCENTRATION) / (contexts.counts + CONCENTRATION)
    return np.asarray(np.minimum(share, 1), dtype=np.float32)
