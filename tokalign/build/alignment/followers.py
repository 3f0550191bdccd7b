"""Which tokens may not follow which, for a whole vocabulary at once, as arrays.

The theory is that of `bpe/validity.py`, which answers for one pair of tokens at a time and explains
the words used here. `Derivations` say how the merges make every token. Example (Bielik): the last
merge of `▁War` joins `▁W` and `ar` and has rank 6770, which is also its max rank. At its right edge
stand `▁War` itself, `ar` from max rank 34 until 6770, and `r` until 34. `Followers` go on from
there.

A merge of a and b crosses the boundary between a token with a on its right spine and a token with b
on its left spine, if it happens while both stand there (`validity.crosses`). For a given a and b,
whether it does depends on the token before the boundary through one number only: how long a stays
at its edge. So for each a there is a list of the tokens that a may rule out, sorted by how long a
has to stay to do it. A token rules out the beginning of the list of each a on its right spine, as
far as that a stays. Where these beginnings end is the *signature* of the token: tokens with equal
signatures rule out the same tokens.

Example (Bielik): the merge of `ar` and `s` has rank 1829.

    `ar` stays at the edge of `▁War` until max rank 6770, and at that of `▁par` until 1308
    `s` stays at the edge of `sz` until max rank 10875, and at that of `st` until 59

So `sz` is in the list of `ar`, and `ar` has to stay beyond 1829 to rule it out: `▁War` does, `▁par`
does not. `st` is not in the list: its `s` is gone before the merge. The encodings `▁War` + `st` and
`▁par` + `sz` are canonical, `▁War` + `sz` is not (it would be `▁Wars` + `z`).
Next: `merge_sites.py`, which looks for bytes that all tokens beginning with them are ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.bpe.validity import NEVER
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id, TargetId

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


Signature = tuple[int, ...]
"""Where the ruled-out beginnings of some lists end, as indices into all lists joined."""

_CHUNK = 1 << 15
"""So many merges are looked at together, which bounds the memory to some 100 MB."""


class Followers:
    """The tokens that each token of an order rules out; see the module.

    There are two lists for each a. If a enters after b, the merge crosses unless one of a lower
    rank takes a away first, so the list is sorted by the `blocking_rank` that a needs. If b enters
    after a, then a must not have left, so the list is sorted by the max rank at which it may leave.
    Cost to build: 1 s for 32,000 tokens.
    """

    def __init__(self, derivations: Derivations, order: TokenOrder[TargetId]) -> None:
        self._derivations = derivations
        self._tokens = np.array(order.ids, dtype=np.int64)
        self._whole_only = np.flatnonzero(~derivations.reachable[self._tokens])
        vocabulary = len(derivations.max_rank)
        lists, needed, follower = _join_lists(list(self._crossings()))
        self._follower = follower.astype(np.int32)
        self._begins = np.searchsorted(lists, np.arange(2 * vocabulary + 1))
        self._mark = np.zeros(len(order.ids), dtype=bool)
        self._keys = lists << 32 | (needed + 1)

    def _crossings(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """(list, stay needed, position of the follower) of every crossing, in chunks."""
        found, rules = self._derivations, self._derivations.rules
        possible = found.reachable[rules.left] & found.reachable[rules.right]
        merges = np.flatnonzero(possible)
        edges = _left_edges_by_id(found, self._tokens)
        starts = np.searchsorted(edges.id, np.arange(len(found.max_rank) + 1))
        for some in np.array_split(merges, len(merges) // _CHUNK + 1):
            right = rules.right[some]
            counts = starts[right + 1] - starts[right]
            each = np.repeat(np.arange(len(some)), counts)
            rows = np.arange(len(each)) + np.repeat(
                starts[right] - np.cumsum(counts) + counts, counts
            )
            in_time = rules.rank[some][each] <= edges.left[rows]
            yield from self._entries(some[each[in_time]], edges.where(rows[in_time]))

    def _entries(self, merge: Ints, b: EdgeTokens) -> Iterator[tuple[Ints, Ints, Ints]]:
        """The entries of the lists for these merges, each with a token whose right half is `b`."""
        rules = self._derivations.rules
        a, rank = rules.left[merge], rules.rank[merge]
        entered = self._derivations.max_rank[a]
        a_last = (entered > b.entered) & (b.left >= entered)
        yield 2 * a[a_last], rank[a_last], b.owner[a_last]
        b_last = (entered <= b.entered) & (rank <= b.blocking_rank)
        needed = np.maximum(rank, b.entered)
        yield 2 * a[b_last] + 1, needed[b_last], b.owner[b_last]

    def signatures(self, tokens: Ints) -> list[Signature]:
        """The signature of each of `tokens`; equal ones rule out the same tokens."""
        ends: list[Ints] = []
        for edge in self._derivations.right_edges(tokens):
            for which, stay in ((0, edge.blocking_rank), (1, edge.left)):
                row = np.zeros(len(tokens), dtype=np.int64)
                lists = 2 * edge.id + which
                end = np.searchsorted(self._keys, lists << 32 | np.minimum(stay, _MOST) + 1)
                row[edge.owner] = np.where(end > self._begins[lists], end, 0)
                ends.append(row)
        table = np.stack(ends, axis=1)
        return [tuple(row[row > 0].tolist()) for row in table]

    def ruled_out(self, signature: Signature) -> Ints:
        """Positions in the order of the tokens that may not follow within a piece, sorted."""
        begins = self._begins[np.searchsorted(self._begins, signature, side="left") - 1]
        self._mark[self._whole_only] = True
        for begin, end in zip(begins.tolist(), signature, strict=True):
            self._mark[self._follower[begin:end]] = True
        positions = np.flatnonzero(self._mark)
        self._mark[positions] = False
        return positions


_MOST = (1 << 32) - 2
"""NEVER, where a stay is packed into 32 bits."""


def _left_edges_by_id(derivations: Derivations, tokens: Ints) -> EdgeTokens:
    """The left spines of `tokens`, all levels, sorted by the token on the spine."""
    levels = derivations.left_edges(tokens)
    whole = EdgeTokens(*(np.concatenate(column) for column in zip(*levels, strict=True)))
    return whole.where(np.argsort(whole.id, kind="stable"))


def _join_lists(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """All entries, sorted by list and stay needed.

    A list keeps one entry per follower: the one that needs the shortest stay.
    """
    lists, needed, follower = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((needed, follower, lists))
    lists, needed, follower = lists[order], needed[order], follower[order]
    new = np.ones(len(lists), dtype=bool)
    new[1:] = (lists[1:] != lists[:-1]) | (follower[1:] != follower[:-1])
    lists, needed, follower = lists[new], needed[new], follower[new]
    order = np.argsort(lists << 32 | needed, kind="stable")
    return lists[order], needed[order], follower[order]
