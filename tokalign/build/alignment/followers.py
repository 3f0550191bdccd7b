"""Which tokens may not follow which, for a whole vocabulary at once.

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

import numpy as np

from tokalign.bpe.encoder import TokenOrder
from tokalign.build.alignment.derivations import Derivations, EdgeTokens, Ints
from tokalign.tokenizer.vocabulary import TargetId

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
