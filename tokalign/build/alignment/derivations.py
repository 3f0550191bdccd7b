"""How the merges make every token of a vocabulary: all of them at once, as arrays.

The same theory as `bpe/validity.py` and `bpe/spines.py`, which answer for one pair at a time;
here for a whole vocabulary, or a million pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.spines import NEVER
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
        """The rank of the merge of each pair; NEVER where there is none."""
        pairs = self.left << 32 | self.right
        wanted = left << 32 | right
        found = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return np.where(pairs[found] == wanted, self.rank[found], NEVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Tokens standing at an edge, one per row: `spines.EdgeToken` as arrays.

    token: whose edge it is; inner: the token that stands there. All i64[rows].
    """

    token: Ints
    inner: Ints
    made: Ints
    used: Ints
    hold: Ints

    def where(self, rows: Bools | Ints) -> Edge:
        return Edge(
            token=self.token[rows],
            inner=self.inner[rows],
            made=self.made[rows],
            used=self.used[rows],
            hold=self.hold[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivations:
    """The last merge of every token. All arrays are [vocabulary].

    reachable: whether the merges make the token from its own bytes (base symbols are there).
    left, right: the halves its last merge joins, -1 for base symbols; rank: of that merge.
    moment: the highest rank in its making, -1 for base symbols.
    """

    rules: Rules
    reachable: Bools
    left: Ints
    right: Ints
    rank: Ints
    moment: Ints

    @classmethod
    def of(cls, tokenizer: Tokenizer[Id]) -> Derivations:
        """Derive every token, shorter ones first.

        Of the merges that result in a token the one that makes it joins two tokens that would
        stand side by side, were it not for this merge. Cost: 0.1 s for 32,000 tokens, 0.7 s for
        128,000.
        """
        tokens, rules = tokenizer.vocabulary.tokens, _rules(tokenizer)
        none = np.full(len(tokens), -1, dtype=np.int64)
        found = cls(
            rules=rules,
            reachable=_symbols(tokenizer),
            left=none.copy(),
            right=none.copy(),
            rank=none.copy(),
            moment=none.copy(),
        )
        length = np.array([len(token) for token in tokens])[rules.result]
        order = np.argsort(length, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(length[order])) + 1):
            found._derive(rows)
        return found

    def _derive(self, rows: Ints) -> None:
        """Enter the tokens that these rules (rows of `rules`) make; their halves are known."""
        rules = self.rules
        rows = rows[self.reachable[rules.left[rows]] & self.reachable[rules.right[rows]]]
        rows = rows[self._stay_apart(rules.left[rows], rules.right[rows], but_for_whole=True)]
        left, right, made = rules.left[rows], rules.right[rows], rules.result[rows]
        self.reachable[made] = True
        self.left[made], self.right[made], self.rank[made] = left, right, rules.rank[rows]
        halves = np.maximum(self.moment[left], self.moment[right])
        self.moment[made] = np.maximum(self.rank[made], halves)

    def valid_pairs(self, left: Ints, right: Ints) -> Bools:
        """`BytePairEncoding.may_follow` of many pairs of reachable tokens. Cost: 2 µs a pair."""
        return self._stay_apart(left, right, but_for_whole=False)

    def _stay_apart(self, left: Ints, right: Ints, *, but_for_whole: bool) -> Bools:
        """but_for_whole: leave the merge of the two whole tokens out of account."""
        apart = np.ones(len(left), dtype=bool)
        rows = np.arange(len(left))
        for i, a in enumerate(self.right_edges(left)):
            # `token` is the row here: the pair that a token of a spine belongs to.
            for j, b in enumerate(self.left_edges(right[a.token])):
                if i or j or not but_for_whole:
                    there = a.where(b.token)
                    rank = self.rules.ranks_of(there.inner, b.inner)
                    apart[rows[there.token[crosses(rank, there, b)]]] = False
        return apart

    def right_edges(self, tokens: Ints) -> Iterator[Edge]:
        """The right spines of `tokens`, level by level; `Edge.token` is the index in `tokens`."""
        return self._edges(tokens, self.right, self.left, waits=np.greater)

    def left_edges(self, tokens: Ints) -> Iterator[Edge]:
        """The left spines. Of two moments that are equal the left half's comes first."""
        return self._edges(tokens, self.left, self.right, waits=np.greater_equal)

    def _edges(self, tokens: Ints, inner: Ints, sibling: Ints, waits: np.ufunc) -> Iterator[Edge]:
        never = np.full(len(tokens), NEVER, dtype=np.int64)
        rows, whole = np.arange(len(tokens)), tokens
        yield Edge(token=rows, inner=whole, made=self.moment[whole], used=never, hold=never)
        while True:
            goes_on = inner[whole] >= 0
            if not goes_on.any():
                return
            rows, outer = rows[goes_on], whole[goes_on]
            whole, other = inner[outer], sibling[outer]
            late = waits(self.moment[other], self.moment[whole])
            hold = np.maximum(self.rank[outer], np.where(late, self.moment[other], -1))
            yield Edge(
                token=rows,
                inner=whole,
                made=self.moment[whole],
                used=self.moment[outer],
                hold=hold,
            )


def crosses(rank: Ints, a: Edge, b: Edge) -> Bools:
    """`spines.crosses` of many: whether each merge happens while both its halves stand there."""
    first = (b.used >= a.made) & (rank < a.hold) & (rank <= b.used)
    second = (a.used > b.made) & (rank <= b.hold) & (rank < a.used)
    return np.asarray((rank < NEVER) & np.where(a.made > b.made, first, second))


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
