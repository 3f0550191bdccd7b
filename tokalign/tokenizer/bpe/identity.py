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


def are_implied(tokens: Sequence[bytes], triples: Ints, apart: Set[int]) -> bool:
    """Whether merges are those that the tokens imply, ranked as their results first appear.

    triples: (left, right, result) in order of rank, i64[merges, 3].
    apart: the ids that no merge takes part in, such as byte fallback and added tokens.
    Cost: about 5 µs a merge.
    """
    results = triples[:, 2]
    starts = np.flatnonzero(np.diff(results, prepend=-1))
    made = np.zeros(len(tokens), dtype=bool)
    made[results] = True
    if np.count_nonzero(made) < len(starts):
        return False  # the ways to make a token have ranks with others between them
    if len(starts) == len(results):
        return all_made(triples, len(tokens))
    literal = {token for i, token in enumerate(tokens) if i not in apart}
    listed: list[int] = np.diff(starts, append=len(results)).tolist()
    return listed == [_count_ways(tokens[i], literal) for i in results[starts]]


def _count_ways(token: bytes, literal: Set[bytes]) -> int:
    """How many ways there are to cut a token into two tokens."""
    cuts = range(1, len(token))
    return sum(token[:cut] in literal and token[cut:] in literal for cut in cuts)


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
    pairs = left << 32 | right
    by_pair = np.argsort(pairs)
    merges = pairs[by_pair], by_pair
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


def _crosses(
    a: Ints, a_left: Ints, b: Ints, b_left: Ints, own: Ints, rank: Ints, merges: tuple[Ints, Ints]
) -> bool:
    """Whether any merge of `a` and `b` comes before the one of the whole halves, rank `own`.
    merges: their pairs, sorted, and the rank of each."""
    pairs, ranks = merges
    wanted = a << 32 | b
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    known = np.flatnonzero(pairs[at] == wanted)
    a, a_left, b, b_left, own = a[known], a_left[known], b[known], b_left[known], own[known]
    merge, entered_a, entered_b = ranks[at[known]], rank[a], rank[b]
    later = (b_left >= entered_a) & (merge < a_left) & (merge <= b_left)
    earlier = (a_left > entered_b) & (merge <= b_left) & (merge < a_left)
    return bool((np.where(entered_a > entered_b, later, earlier) & (merge < own)).any())
