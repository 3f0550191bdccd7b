"""The merge rules of a tokenizer, and which tokens may stand side by side by them.

Three facts (rust-gems `crates/bpe/README.md`, corollaries I to III; `docs/alignment.md` states them
with the test of each):

1. The first tokens of a canonical encoding are the canonical encoding of their own bytes.
2. Within one piece, a sequence of tokens is canonical iff every adjacent pair is.
3. Whether a pair is canonical follows from the merges alone, by undoing those of both tokens.

While the merges make a token, ever larger tokens stand at its right edge: its *right spine*. Those
at its left edge are its *left spine*. Two tokens that meet at a boundary are made independently
until a merge joins a token of the left one's right spine with a token of the right one's left
spine: that merge *crosses* the boundary.

Ranks alone do not tell in which order merges happen. A merge of a low rank may have to wait until
one of a high rank makes its halves; 9,000 to 50,000 merges of the real tokenizers do. So time is
measured by the *max rank*: the highest rank merged so far within the bytes concerned.

Example (Bielik): may `sz` follow `▁War`, as in `▁Warszawa`?

    right spine of ▁War:    r until max rank 34,     then ar until 6770,  then ▁War
    left spine of sz:       s until max rank 10875,  then sz

The merge of `ar` and `s` has rank 1829. At that time both stand at the boundary, so it crosses,
and `sz` may not follow `▁War`: the canonical encoding is `▁Wars`, `z`, `awa`.
In general: once a and b stand at the boundary, a merge of rank c joins them iff c is lower than the
highest rank merged inside the left token before a is merged away, and not higher than the highest
rank merged inside the right token before b is merged away; where ranks are equal, the leftmost
merge goes first. What happens on one side does not affect the other until a merge crosses.
`build/merge_sites.py` answers for a whole vocabulary at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Generic, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.bpe import Id

Ints: TypeAlias = NDArray[np.int64]

_LOW = (1 << 32) - 1

_NO_MERGE = 1 << 63
"""Greater than every packed rule."""

_SHORT = 32
"""Up to this many symbols, searching all pairs is faster than keeping them in a queue."""


class Merged(NamedTuple, Generic[Id]):
    """What became of some symbols: the tokens that are left; the last merge's rank and halves, and
    the highest rank of all (-1 and None without merges)."""

    ids: list[Id]
    last_rank: int
    last_pair: tuple[Id, Id] | None
    max_rank: int


@dataclass(frozen=True, slots=True)
class Merges:
    """Merge rules; the rule of the lowest rank goes first.

    They are packed into integers: `left << 32 | right` maps to `rank << 32 | result`. Right after a
    pass of the model every tuple that is touched would cost a cache miss.
    """

    rules: Mapping[int, int]

    @classmethod
    def from_triples(cls, triples: Ints | Sequence[tuple[int, int, int]]) -> Merges:
        """Rank `(left, right, result)` triples in order; of a repeated pair the first counts."""
        left, right, result = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        packed = np.arange(len(result)) << 32 | result
        # Written from the last to the first, so that of a repeated pair the first stays.
        pairs = (left << 32 | right)[::-1].tolist()
        return cls(dict(zip(pairs, packed[::-1].tolist(), strict=True)))

    def to_arrays(self) -> tuple[Ints, Ints]:
        """Packed pairs and their ranks, i64[rules] each, in order of rank."""
        pairs = np.fromiter(self.rules, dtype=np.int64, count=len(self.rules))
        ranks = np.fromiter(self.rules.values(), dtype=np.int64, count=len(self.rules)) >> 32
        order = np.argsort(ranks)
        return pairs[order], ranks[order]

    def apply(self, symbols: list[Id]) -> Merged[Id]:
        """Merge `symbols` as one piece, the lowest rank first, ties from the left. Cost: O(n log
        n), 5 µs for 8 symbols."""
        return self._apply_short(symbols) if len(symbols) <= _SHORT else self._apply_long(symbols)

    def _apply_short(self, symbols: list[Id]) -> Merged[Id]:
        """Search all pairs for every merge: 5 µs for 8 symbols, where a queue takes 7."""
        get, token = self.rules.get, list(symbols)
        found = [get(left << 32 | right, _NO_MERGE) for left, right in pairwise(symbols)]
        rank = max_rank = -1
        pair: tuple[Id, Id] | None = None
        while found:
            first = min(found)
            if first == _NO_MERGE:
                break
            i = found.index(first)
            rank = first >> 32
            if rank > max_rank:
                max_rank = rank
            del found[i]
            pair = token[i], token.pop(i + 1)
            result = token[i] = first & _LOW  # type: ignore[assignment]
            if i < len(found):
                found[i] = get(result << 32 | token[i + 1], _NO_MERGE)
            if i:
                found[i - 1] = get(token[i - 1] << 32 | result, _NO_MERGE)
        return Merged(token, rank, pair, max_rank)

    def _apply_long(self, symbols: list[Id]) -> Merged[Id]:
        """Keep the pairs in a queue, which is faster for long pieces."""
        rules, size = self.rules, len(symbols)
        token, after, before = list(symbols), list(range(1, size + 1)), list(range(-1, size - 1))
        queue = [
            (found, i, left << 32 | right)
            for i, (left, right) in enumerate(pairwise(symbols))
            if (found := rules.get(left << 32 | right)) is not None
        ]
        heapify(queue)
        last_rank = max_rank = -1
        last_pair: tuple[Id, Id] | None = None
        while queue:
            found, i, pair = heappop(queue)
            j = after[i]
            if j >= size or token[i] << 32 | token[j] != pair:
                continue  # one side was merged after this entry was queued
            last_rank, last_pair = found >> 32, (token[i], token[j])
            max_rank = max(max_rank, last_rank)
            token[i], token[j] = found & _LOW, -1  # type: ignore[assignment]
            k = after[i] = after[j]
            if k < size:
                before[k] = i
                pair = token[i] << 32 | token[k]
                if (found := rules.get(pair)) is not None:
                    heappush(queue, (found, i, pair))
            h = before[i]
            if h >= 0:
                pair = token[h] << 32 | token[i]
                if (found := rules.get(pair)) is not None:
                    heappush(queue, (found, h, pair))
        return Merged([t for t in token if t >= 0], last_rank, last_pair, max_rank)


NEVER = 1 << 60
"""Later than any merge."""


class EdgeToken(NamedTuple, Generic[Id]):
    """A token that stands at the edge of a larger one for a part of its making.

    entered, left: the max ranks at which it comes to stand there (-1 for a symbol), and at which it
        is merged away (NEVER for the finished token).
    blocking_rank: the highest rank merged within the larger token in between, including the merge
        that takes this token away. A merge across the edge comes too late if its rank is higher.
    """

    id: Id
    entered: int
    left: int
    blocking_rank: int


Spine: TypeAlias = tuple[EdgeToken[Id], ...]
"""The tokens at one edge of a token, the latest first: itself, and at the end its symbol."""


def crosses(rank: int, a: EdgeToken[Id], b: EdgeToken[Id]) -> bool:
    """Whether the merge of `a` and `b`, of this rank, happens while both stand at the boundary.

    a: of the right spine of the token before the boundary; b: of the left spine of the one after.
    It happens once both stand there, unless merges of lower ranks take one of them away first.
    Where ranks are equal the leftmost merge goes first.
    """
    if a.entered > b.entered:  # `b` was there when `a` came, unless it was merged away earlier
        return b.left >= a.entered and rank < a.blocking_rank and rank <= b.left
    return a.left > b.entered and rank <= b.blocking_rank and rank < a.left


class PairValidity(Generic[Id]):
    """Decides which tokens of one tokenizer may follow which within a piece. tokens: id -> bytes.
    merge: merges the symbols of some bytes. fallback: ids of byte fallback."""

    derivation: Callable[[Id], Merged[Id]]
    """How the merges make a token from its own bytes. `ids` is empty if they do not make it: such
    a token can only stand as a whole piece (`ignore_merges`)."""

    right_spine: Callable[[Id], Spine[Id]]
    """The tokens at the right edge of a token while it is merged."""

    left_spine: Callable[[Id], Spine[Id]]
    """The tokens at the left edge of a token while it is merged."""

    def __init__(
        self,
        *,
        tokens: Sequence[bytes],
        merges: Merges,
        merge: Callable[[bytes], Merged[Id]],
        fallback: Set[Id],
    ) -> None:
        self._tokens = tokens
        self._rules = merges.rules
        self._merge = merge
        self._fallback = fallback
        self.derivation = lru_cache(maxsize=1 << 16)(self._derivation)
        self.right_spine = lru_cache(maxsize=1 << 16)(partial(self._spine, 1))
        self.left_spine = lru_cache(maxsize=1 << 16)(partial(self._spine, 0))

    def may_follow(self, left: Id, right: Id) -> bool:
        """Whether `right` may stand after `left` within a piece: no merge crosses between them.

        Special tokens stand apart: they may follow everything, and everything may follow them.
        Cost: about 2 µs once both spines are known. Source: rust-gems bpe README, corollary IIIa,
        here for merges in any order (`docs/alignment.md`); there the rank of a token is its id.
        """
        if not self._tokens[left] or not self._tokens[right]:
            return True
        return self.stays_apart(self.right_spine(left), self.left_spine(right))

    def stays_apart(self, right_spine: Spine[Id], left_spine: Spine[Id]) -> bool:
        """`may_follow` of two ordinary tokens, given the two spines that meet."""
        rules = self._rules
        for a in right_spine:
            packed = a.id << 32
            for b in left_spine:
                found = rules.get(packed | b.id)
                if found is not None and crosses(found >> 32, a, b):
                    return False
        return True

    def reachable(self, token: Id) -> bool:
        """Whether the merges make `token` from its own bytes; symbols and fallback bytes count."""
        return bool(self.derivation(token).ids) or token in self._fallback

    def _derivation(self, token: Id) -> Merged[Id]:
        merged = self._merge(self._tokens[token])
        return merged if merged.ids == [token] else Merged([], -1, None, -1)

    def _spine(self, side: int, token: Id) -> Spine[Id]:
        """Undo the last merge of `token` and go on with its half at this edge (0 left, 1 right)."""
        outer = self.derivation(token)
        spine = [EdgeToken(token, outer.max_rank, NEVER, NEVER)]
        while outer.last_pair is not None:
            half, sibling = outer.last_pair[side], outer.last_pair[1 - side]
            inner, waited = self.derivation(half), self.derivation(sibling).max_rank
            # The half waits for its sibling if that is made later. Where the max ranks are equal,
            # the left half is made first.
            waits = waited > inner.max_rank if side else waited >= inner.max_rank
            blocking_rank = max(outer.last_rank, waited) if waits else outer.last_rank
            spine.append(EdgeToken(half, inner.max_rank, outer.max_rank, blocking_rank))
            outer = inner
        return tuple(spine)
