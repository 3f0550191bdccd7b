"""Which merges say no more than the tokens and their order do.

Files of different kinds spell the same merges differently. tiktoken's and SentencePiece's rank the
tokens, which stands for every way to make a token from two others; a tokenizer.json may list one
way for each. Only one way is ever taken, because nothing that lies around a token has a part in how
it is made (`validity.py`, corollary II). So the two are the same encoding if every token is made
by the one way that is listed, and by tokens that come before it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_Hashes = NDArray[np.uint64]

_TOP = np.int64(1 << 40)
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))


def are_implied(tokens: Sequence[bytes], triples: Ints, apart: Set[int]) -> bool:
    """Whether merges are those that the tokens imply, ranked as their results first appear.

    triples: (left, right, result) in order of rank, i64[merges, 3].
    apart: the ids that no merge takes part in, such as byte fallback and added tokens.
    Cost: 0.1 s for 150,000 merges, 0.2 s for 500,000.
    """
    results = triples[:, 2]
    starts = np.flatnonzero(np.diff(results, prepend=-1))
    made = np.zeros(len(tokens), dtype=bool)
    made[results] = True
    if np.count_nonzero(made) < len(starts):
        return False  # the ways to make a token have ranks with others between them
    if len(starts) == len(results):
        return all_made(triples, len(tokens))
    literal = [b"" if i in apart else token for i, token in enumerate(tokens)]
    listed = np.diff(starts, append=len(results))
    return bool((listed == _count_ways(literal)[results[starts]]).all())


def _count_ways(tokens: Sequence[bytes]) -> Ints:
    """How many ways there are to cut each token into two tokens. Stretches of bytes are known by a
    hash of 64 bits; two that share one cost nothing but a longer fingerprint."""
    sizes = np.array([*map(len, tokens)])
    ends = np.cumsum(sizes)
    text = np.frombuffer(b"".join(tokens), np.uint8).astype(np.uint64) + np.uint64(1)
    powers = np.cumprod(np.full(len(text) + 1, _BASE))
    undo = np.cumprod(np.full(len(text) + 1, _INVERSE))
    sums = np.concatenate([[np.uint64(0)], np.cumsum(text * powers[:-1])])

    def hashes(start: Ints, end: Ints) -> _Hashes:
        found: _Hashes = (sums[end] - sums[start]) * undo[start]
        return found

    owner = np.repeat(np.arange(len(tokens)), sizes)
    cut = np.arange(len(text))
    inner = cut > (ends - sizes)[owner]
    owner, cut = owner[inner], cut[inner]
    known = _Lookup(hashes(ends - sizes, ends)[sizes > 0])
    halves = known.find(hashes((ends - sizes)[owner], cut)) >= 0
    owner, cut = owner[halves], cut[halves]
    return np.bincount(owner[known.find(hashes(cut, ends[owner])) >= 0], minlength=len(tokens))


class _Lookup:
    """Finds places of 64-bit keys. A bitmap answers first, since most keys are not there."""

    _BITS = np.uint64(22)

    def __init__(self, keys: _Hashes) -> None:
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        self._bitmap = np.zeros(1 << int(self._BITS), dtype=bool)
        self._bitmap[self._slot(keys)] = True

    def _slot(self, keys: _Hashes) -> _Hashes:
        return keys * _BASE >> np.uint64(64) - self._BITS

    def find(self, keys: _Hashes) -> Ints:
        """The place of each key among those that were given; -1 if it is not there."""
        places = np.full(len(keys), -1, dtype=np.int64)
        likely = np.flatnonzero(self._bitmap[self._slot(keys)])
        at = np.searchsorted(self._keys, keys[likely])
        at = np.minimum(at, len(self._keys) - 1)
        right = self._keys[at] == keys[likely]
        places[likely[right]] = self._order[at[right]]
        return places


def all_made(triples: Ints, size: int) -> bool:
    """Whether the merges make each result from its own symbols, and from results before it.

    triples: one for each result, in order of rank. size: of the vocabulary.
    A result is made unless an earlier merge crosses the boundary of its halves (`validity.crosses`;
    here the highest rank within a token is its own).
    """
    left, right, result = triples.T
    rank = np.full(size, -1, dtype=np.int64)
    rank[result] = np.arange(len(triples))
    repeats = np.count_nonzero(rank >= 0) < len(result)
    if repeats or (np.maximum(rank[left], rank[right]) >= rank[result]).any():
        return False
    halves = np.full((2, size), -1, dtype=np.int64)
    halves[:, result] = left, right
    merges = _Lookup(_pairs(left, right))
    # a: tokens at the right edge of the left half; b: those at the left edge of the right half.
    a, a_left, own = left, rank[result], rank[result]
    b, b_left = right, rank[result]
    while len(a):
        inner_b, inner_left, inner_own, inner_a, inner_a_left = b, b_left, own, a, a_left
        while len(inner_b):
            if _crosses(inner_a, inner_a_left, inner_b, inner_left, inner_own, rank, merges):
                return False
            deeper = halves[0, inner_b]
            kept = deeper >= 0
            inner_left = rank[inner_b[kept]]
            inner_b, inner_own = deeper[kept], inner_own[kept]
            inner_a, inner_a_left = inner_a[kept], inner_a_left[kept]
        deeper = halves[1, a]
        kept = deeper >= 0
        a_left, a = rank[a[kept]], deeper[kept]
        b, b_left, own = b[kept], b_left[kept], own[kept]
    return True


def _pairs(left: Ints, right: Ints) -> _Hashes:
    return (left << 32 | right).astype(np.uint64)


def _crosses(
    a: Ints, a_left: Ints, b: Ints, b_left: Ints, own: Ints, rank: Ints, merges: _Lookup
) -> bool:
    """Whether any merge of `a` and `b` comes before the one of the whole halves, rank `own`."""
    place = merges.find(_pairs(a, b))
    merge = np.where(place >= 0, place, _TOP)
    entered_a, entered_b = rank[a], rank[b]
    later = (b_left >= entered_a) & (merge < a_left) & (merge <= b_left)
    earlier = (a_left > entered_b) & (merge <= b_left) & (merge < a_left)
    crossing = np.where(entered_a > entered_b, later, earlier) & (merge < own)
    return bool(crossing.any())
