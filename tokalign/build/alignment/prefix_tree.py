"""A vocabulary as a tree of byte prefixes, in flat arrays.

Sort the tokens by their bytes, and those that begin with the same prefix are neighbours. Every
different prefix is a *node*. Nodes are numbered depth first, parents before their children.

Example (Bielik): `▁Polish`, `▁Polit`, `▁Political`, `▁Politics`, `▁Politiker`, `▁Poll` are
neighbours. The node of `▁Polit` has the four tokens in the middle, and so has no shorter prefix:
`covered` finds it for these four. Without `▁Polit` itself it finds the node of `▁Politi`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.sorted_vocabulary import TokenOrder
from tokalign.tokenizer.vocabulary import TargetId

Ints = NDArray[np.int64]

NOWHERE = -1
"""The parent of a prefix of one byte."""


@dataclass(frozen=True, kw_only=True)
class PrefixTree:
    """n tokens, m nodes.

    order: the tokens, sorted; the index of a token there is its *position*.
    shared: i64[n + 1], how many bytes each token shares with the one before it; 0 at both ends.
    length: i64[n], of each token in bytes.
    base: i64[n]; `base[i] + d` is the node of the first d bytes of token i, for
        shared[i] < d <= length[i].
    first, last: i64[m], the range of positions of a node's tokens, `last` not included.
    depth: i64[m], the length of each prefix in bytes.
    parent: i64[m], the node of the prefix that is one byte shorter, or NOWHERE.
    """

    order: TokenOrder[TargetId]
    shared: Ints
    length: Ints
    base: Ints
    first: Ints
    last: Ints
    depth: Ints
    parent: Ints

    @classmethod
    def of(cls, order: TokenOrder[TargetId]) -> PrefixTree:
        """The tree of the tokens of an order. Cost: 1 s for 128,000 tokens."""
        spelled = order.spelled
        shared = [0, *(_common(a, b) for a, b in pairwise(spelled)), 0]
        first: list[int] = []
        depth: list[int] = []
        parent: list[int] = []
        last = [len(spelled)] * sum(len(t) - s for t, s in zip(spelled, shared, strict=False))
        base: list[int] = []
        path: list[int] = []  # the nodes of the token before
        for i, (token, common) in enumerate(zip(spelled, shared, strict=False)):
            for node in path[common:]:
                last[node] = i
            del path[common:]
            base.append(len(first) - common - 1)
            for length in range(common + 1, len(token) + 1):
                parent.append(path[-1] if path else NOWHERE)
                path.append(len(first))
                first.append(i)
                depth.append(length)
        return cls(
            order=order,
            shared=np.array(shared, dtype=np.int64),
            length=np.array([len(token) for token in spelled], dtype=np.int64),
            base=np.array(base, dtype=np.int64),
            first=np.array(first, dtype=np.int64),
            last=np.array(last, dtype=np.int64),
            depth=np.array(depth, dtype=np.int64),
            parent=np.array(parent, dtype=np.int64),
        )

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.first)

    def text(self, node: int) -> bytes:
        """The prefix that a node stands for."""
        return self.order.spelled[int(self.first[node])][: int(self.depth[node])]

    def children(self, nodes: Ints) -> Ints:
        """The nodes of all prefixes that are one byte longer than these."""
        start, order = self._children
        counts = start[nodes + 1] - start[nodes]
        begin = np.repeat(start[nodes] - np.cumsum(counts) + counts, counts)
        return order[begin + np.arange(len(begin))]

    @cached_property
    def _children(self) -> tuple[Ints, Ints]:
        """Where the children of each node begin, and all nodes sorted by their parent."""
        order = np.argsort(self.parent, kind="stable")
        start = np.searchsorted(self.parent[order], np.arange(len(self) + 1))
        return start, order

    def covered(self, positions: Ints, *, more_than: int = 0) -> Ints:
        """The nodes of the shortest prefixes whose tokens are all among `positions`.

        positions: sorted, without repeats. more_than: only prefixes of more tokens than this.
        Cost: 10 ns per position.
        """
        # A run is a series of neighbours. A prefix of a token in a run has all its tokens in the
        # run iff it is longer than what the token shares with the tokens just outside the run.

        breaks = np.flatnonzero(positions[1:] - positions[:-1] != 1) + 1
        bounds = np.concatenate(([0], breaks, [len(positions)]))
        sizes = bounds[1:] - bounds[:-1]
        long = sizes > more_than
        positions = positions[np.repeat(long, sizes)]
        if not len(positions):
            return positions
        run = np.repeat(np.arange(int(long.sum())), sizes[long])
        shared_before = _running_minimum(self.shared[positions], run)
        following = self.shared[positions + 1][::-1]
        shared_after = _running_minimum(following, run[-1] - run[::-1])[::-1]
        needed = np.maximum(shared_before, shared_after) + 1
        starts = (needed > self.shared[positions]) & (needed <= self.length[positions])
        nodes: Ints = self.base[positions[starts]] + needed[starts]
        return nodes[self.last[nodes] - self.first[nodes] > more_than]


def _running_minimum(values: Ints, group: Ints) -> Ints:
    """The least value so far within each group; groups are numbered 0, 1, ... in order."""
    drop = group << 32  # each group lies below all before it
    least: Ints = np.minimum.accumulate(values - drop) + drop
    return least


def _common(a: bytes, b: bytes) -> int:
    """How many bytes two byte strings share at their beginnings."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
