"""Which tokens may not follow which, for a whole vocabulary at once.

A merge (a, b) crosses the boundary between a token with a on its right spine and one with b on its
left spine, if it comes while both stand there (`spines.crosses`). For a given a, whether it does
depends on the left token only through one number: how long a stays. So the tokens that a forbids
are listed by the stay they need, and a left token forbids the beginning of the list of each a on
its spine. Where each beginning ends is its *signature*: tokens of one signature forbid the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokalign.bpe.sorted_vocabulary import TokenOrder
from tokalign.build.alignment.derivations import Derivations, Edge, Ints
from tokalign.tokenizer.vocabulary import TargetId

Signature = tuple[int, ...]
"""Ends of list beginnings, as indices into all lists joined."""

_CHUNK = 1 << 15
"""Merges that are looked at together: bounds the memory to some 100 MB."""


class Followers:
    """Answers for the tokens of an order; see the module. Cost to build: 1 s for 32,000 tokens.

    There are two lists for each a. If a comes last, the boundary is crossed unless a merge of a
    lower rank takes a away: what counts is `hold`. If b comes last, a has to be there still: what
    counts is `used`.
    """

    def __init__(self, derivations: Derivations, order: TokenOrder[TargetId]) -> None:
        self._derivations = derivations
        self._tokens = np.array(order.ids, dtype=np.int64)
        self._whole_only = np.flatnonzero(~derivations.reachable[self._tokens])
        vocabulary = len(derivations.moment)
        lists, needed, follower = _joined(list(self._crossings()))
        self._follower = follower.astype(np.int32)
        self._begins = np.searchsorted(lists, np.arange(2 * vocabulary + 1))
        self._mark = np.zeros(len(order.ids), dtype=bool)
        self._keys = lists << 32 | (needed + 1)

    def _crossings(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """(list, stay needed, position of the follower) of every crossing, in chunks."""
        found, rules = self._derivations, self._derivations.rules
        possible = found.reachable[rules.left] & found.reachable[rules.right]
        merges = np.flatnonzero(possible)
        spines = _by_inner(found, self._tokens)
        starts = np.searchsorted(spines.inner, np.arange(len(found.moment) + 1))
        for some in np.array_split(merges, len(merges) // _CHUNK + 1):
            right = rules.right[some]
            counts = starts[right + 1] - starts[right]
            each = np.repeat(np.arange(len(some)), counts)
            rows = np.arange(len(each)) + np.repeat(
                starts[right] - np.cumsum(counts) + counts, counts
            )
            in_time = rules.rank[some][each] <= spines.used[rows]
            yield from self._lists(some[each[in_time]], spines.where(rows[in_time]))

    def _lists(self, merge: Ints, b: Edge) -> Iterator[tuple[Ints, Ints, Ints]]:
        """The crossings of merges with the tokens of spines that stand there in time."""
        rules = self._derivations.rules
        left, rank = rules.left[merge], rules.rank[merge]
        made = self._derivations.moment[left]
        by_hold = (made > b.made) & (b.used >= made)
        yield 2 * left[by_hold], rank[by_hold], b.token[by_hold]
        by_used = (made <= b.made) & (rank <= b.hold)
        stay = np.maximum(rank, b.made)
        yield 2 * left[by_used] + 1, stay[by_used], b.token[by_used]

    def signatures(self, tokens: Ints) -> list[Signature]:
        """What decides which tokens may not follow each of `tokens`."""
        ends: list[Ints] = []
        for edge in self._derivations.right_edges(tokens):
            for which, stay in ((0, edge.hold), (1, edge.used)):
                row = np.zeros(len(tokens), dtype=np.int64)
                lists = 2 * edge.inner + which
                end = np.searchsorted(self._keys, lists << 32 | np.minimum(stay, _MOST) + 1)
                row[edge.token] = np.where(end > self._begins[lists], end, 0)
                ends.append(row)
        table = np.stack(ends, axis=1)
        return [tuple(row[row > 0].tolist()) for row in table]

    def forbidden(self, signature: Signature) -> Ints:
        """Positions of the tokens that may not follow within a piece, sorted."""
        begins = self._begins[np.searchsorted(self._begins, signature, side="left") - 1]
        self._mark[self._whole_only] = True
        for begin, end in zip(begins.tolist(), signature, strict=True):
            self._mark[self._follower[begin:end]] = True
        positions = np.flatnonzero(self._mark)
        self._mark[positions] = False
        return positions


_MOST = (1 << 32) - 2
"""NEVER, where a stay is packed into 32 bits."""


def _by_inner(derivations: Derivations, tokens: Ints) -> Edge:
    """The left spines of `tokens`, all levels, sorted by the token on the spine."""
    levels = list(derivations.left_edges(tokens))
    whole = Edge(
        token=np.concatenate([level.token for level in levels]),
        inner=np.concatenate([level.inner for level in levels]),
        made=np.concatenate([level.made for level in levels]),
        used=np.concatenate([level.used for level in levels]),
        hold=np.concatenate([level.hold for level in levels]),
    )
    return whole.where(np.argsort(whole.inner, kind="stable"))


def _joined(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """All crossings by list and stay needed; of those of one follower in a list the first."""
    lists, needed, follower = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((needed, follower, lists))
    lists, needed, follower = lists[order], needed[order], follower[order]
    new = np.ones(len(lists), dtype=bool)
    new[1:] = (lists[1:] != lists[:-1]) | (follower[1:] != follower[:-1])
    lists, needed, follower = lists[new], needed[new], follower[new]
    order = np.argsort(lists << 32 | needed, kind="stable")
    return lists[order], needed[order], follower[order]
