"""How the merges make the tokens of a vocabulary: all of them at once, as arrays.

The theory is that of `bpe/validity.py`, which answers for one pair of tokens at
a time and explain the words used here. These arrays answer for a whole vocabulary, or for a million
pairs, in one call.

Example (Bielik): the last merge of `▁War` joins `▁W` and `ar` and has rank 6770, which is also its
max rank. At its right edge stand `▁War` itself, `ar` from max rank 34 until 6770, and `r` until 34.
Next: `followers.py`, which asks which tokens may follow which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.validity import NEVER
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rules:
    """The merges as arrays of one length, sorted by (left, right)."""

    left: Ints
    right: Ints
    rank: Ints
    result: Ints

    def ranks_of(self, left: Ints, right: Ints) -> Ints:
        """The rank of the merge of each pair of ids; NEVER where there is none."""
        pairs = self.left << 32 | self.right
        wanted = left << 32 | right
        found = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return np.where(pairs[found] == wanted, self.rank[found], NEVER)


class EdgeTokens(NamedTuple):
    """`validity.EdgeToken` as arrays, i64[rows].

    owner: the index of the larger token at whose edge `id` stands, among the tokens asked about.
    """

    owner: Ints
    id: Ints
    entered: Ints
    left: Ints
    blocking_rank: Ints

    def where(self, rows: Bools | Ints) -> EdgeTokens:
        """Some of the rows, given as a mask or as indices."""
        return EdgeTokens(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivations:
    """How every token of a vocabulary is made. All arrays but `rules` are [vocabulary].

    reachable: whether the merges make the token from its own bytes; symbols count.
    left, right: the halves that its last merge joins, -1 for symbols. last_rank: of that merge.
    max_rank: the highest rank merged in its making, -1 for symbols.
    """

    rules: Rules
    reachable: Bools
    left: Ints
    right: Ints
    last_rank: Ints
    max_rank: Ints

    @classmethod
    def of(cls, tokenizer: Tokenizer[Id]) -> Derivations:
        """Derive every token, shorter ones first.

        Several merges may result in one token. The one that makes it joins two tokens that no other
        merge would keep from standing side by side.
        Cost: 0.1 s for 32,000 tokens, 0.7 s for 128,000.
        """
        tokens, rules = tokenizer.vocabulary.tokens, _rules(tokenizer)
        none = np.full(len(tokens), -1, dtype=np.int64)
        found = cls(
            rules=rules,
            reachable=_symbols(tokenizer),
            left=none.copy(),
            right=none.copy(),
            last_rank=none.copy(),
            max_rank=none.copy(),
        )
        length = np.array([len(token) for token in tokens])[rules.result]
        order = np.argsort(length, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(length[order])) + 1):
            found._derive(rows)
        return found

    def _derive(self, rows: Ints) -> None:
        """Enter the tokens that these merges (rows of `rules`) make; their halves are known."""
        rules = self.rules
        rows = rows[self.reachable[rules.left[rows]] & self.reachable[rules.right[rows]]]
        rows = rows[self.stay_apart(rules.left[rows], rules.right[rows], but_for_whole=True)]
        left, right, made = rules.left[rows], rules.right[rows], rules.result[rows]
        self.reachable[made] = True
        self.left[made], self.right[made], self.last_rank[made] = left, right, rules.rank[rows]
        halves = np.maximum(self.max_rank[left], self.max_rank[right])
        self.max_rank[made] = np.maximum(self.last_rank[made], halves)

    def stay_apart(self, left: Ints, right: Ints, *, but_for_whole: bool) -> Bools:
        """`PairValidity.may_follow` of many pairs of reachable tokens. Cost: 2 µs a pair.

        but_for_whole: do not count the merge of the two whole tokens.
        """
        apart = np.ones(len(left), dtype=bool)
        for i, a in enumerate(self.right_edges(left)):
            for j, b in enumerate(self.left_edges(right[a.owner])):
                if i or j or not but_for_whole:
                    meeting = a.where(b.owner)  # `b.owner` is a row of `a`
                    rank = self.rules.ranks_of(meeting.id, b.id)
                    apart[meeting.owner[crosses(rank, meeting, b)]] = False
        return apart

    def right_edges(self, tokens: Ints) -> Iterator[EdgeTokens]:
        """The right spines of `tokens`, level by level: the tokens themselves first."""
        return self._edges(tokens, self.right, self.left, waits=np.greater)

    def left_edges(self, tokens: Ints) -> Iterator[EdgeTokens]:
        """The left spines of `tokens`, level by level: the tokens themselves first."""
        # Where the max ranks of two halves are equal, the left half is made first.
        return self._edges(tokens, self.left, self.right, waits=np.greater_equal)

    def _edges(
        self, tokens: Ints, half: Ints, sibling: Ints, waits: np.ufunc
    ) -> Iterator[EdgeTokens]:
        """half: of each token, at the edge asked for; sibling: at the other edge.

        waits: whether a half whose sibling has the first max rank waits for it, its own being the
        second.
        """
        never = np.full(len(tokens), NEVER, dtype=np.int64)
        owner, ids = np.arange(len(tokens)), tokens
        yield EdgeTokens(
            owner=owner, id=ids, entered=self.max_rank[ids], left=never, blocking_rank=never
        )
        while True:
            goes_on = half[ids] >= 0
            if not goes_on.any():
                return
            owner, outer = owner[goes_on], ids[goes_on]
            ids, waited = half[outer], self.max_rank[sibling[outer]]
            late = waits(waited, self.max_rank[ids])
            yield EdgeTokens(
                owner=owner,
                id=ids,
                entered=self.max_rank[ids],
                left=self.max_rank[outer],
                blocking_rank=np.maximum(self.last_rank[outer], np.where(late, waited, -1)),
            )


def crosses(rank: Ints, a: EdgeTokens, b: EdgeTokens) -> Bools:
    """`validity.crosses` of many pairs, row by row. rank: of the merge of `a` and `b`."""
    a_enters_last = (b.left >= a.entered) & (rank < a.blocking_rank) & (rank <= b.left)
    b_enters_last = (a.left > b.entered) & (rank <= b.blocking_rank) & (rank < a.left)
    crossed = np.where(a.entered > b.entered, a_enters_last, b_enters_last)
    return np.asarray((rank < NEVER) & crossed)


def _rules(tokenizer: Tokenizer[Id]) -> Rules:
    pairs, ranks, results = tokenizer.bpe.merges.to_arrays()
    order = np.argsort(pairs)
    pairs = pairs[order]
    return Rules(pairs >> 32, pairs & 0xFFFFFFFF, ranks[order], results[order])


def _symbols(tokenizer: Tokenizer[Id]) -> Bools:
    """What merging starts from: characters or bytes, and the bytes that stand in for characters."""
    tokens, bpe = tokenizer.vocabulary.tokens, tokenizer.bpe
    symbols = np.zeros(len(tokens), dtype=bool)
    for i, token in enumerate(tokens):
        if 0 < len(token) <= 4:  # bytes of the longest character
            symbols[i] = i in tokenizer.vocabulary.fallback or bpe.base_symbols(token) == [i]
    return symbols
