"""Where the target tokenizer would merge across a boundary, found from the merges alone.

`followers.py` knows for every token which tokens may not follow it. A byte string is a *merge site*
of a token if nothing that begins with these bytes may follow: no token that begins with them, and
no shorter token together with the rest of them. The sites of a token depend on its signature only.

Example (Bielik): 31 tokens begin with `su`, and `▁War` rules out all of them, because it would be
merged with their `s`. It rules out the token `s`, too. So `su` is a merge site of `▁War`: the
boundary of `▁War` + `su…` is in no canonical encoding. `s` alone is not, for `st` may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokalign.build.alignment.followers import Derivations, Followers, Ints, Signature
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.bpe.absorption import FALLBACK, MIN_FANOUT, Absorption
from tokalign.tokenizer.bpe.encoder import BytePairEncoding, TokenOrder
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

NOWHERE = -1
"""The parent of a prefix of one byte."""


def find_merge_sites(
    target: Tokenizer[TargetId], *, progress: Callable[[int], None] = lambda _: None
) -> MergeSites:
    """Find for every target token the shortest merge sites with which many tokens begin.

    Exact and complete within a piece, for every kind of BPE and every byte string with which more
    than MIN_FANOUT tokens begin. `Absorption` works out the others when it is asked. Where the
    merges are not known there are none, and encoding decides.
    progress: called with the number of tokens done since the last call.
    Cost: 4 s for 32,000 tokens, 30 s for 128,000. Source: rust-gems bpe README, corollary IIIa.
    """
    if target.level is not Level.ALIGNED:
        return MergeSites(np.zeros(len(target.vocabulary), dtype=np.uint32), [()])
    search = SiteSearch(target)
    rows = np.zeros(len(target.vocabulary), dtype=np.uint32)
    numbers: dict[tuple[int, ...], int] = {(): 0}
    for tokens, signature in search.groups():
        rows[tokens] = numbers.setdefault(search.sites(signature), len(numbers))
        progress(len(tokens))
    return MergeSites(rows, [sorted(map(search.text, nodes)) for nodes in numbers])


class SiteSearch:
    """Finds the merge sites of a tokenizer: the shortest ones, with which many tokens begin."""

    def __init__(self, target: Tokenizer[TargetId], *, more_than: int = MIN_FANOUT) -> None:
        """more_than: look only for sites with which more tokens than this begin."""
        self._more_than = more_than
        order, derivations = target.bpe.order, Derivations.of(target)
        ids = np.array(order.ids, dtype=np.int64)
        self._reachable = ids[derivations.reachable[ids]]
        self._tree = PrefixTree.of(order)
        self._followers = Followers(derivations, order)
        self._absorption = _Tabulated(target.bpe, self._followers)
        self._ruled_out = np.zeros(len(ids), dtype=bool)
        self.text = cache(self._tree.text)
        self._beginnings = cache(lambda node: self._absorption.beginnings(self.text(node)))

    def groups(self) -> list[tuple[Ints, Signature]]:
        """The tokens that the merges make, grouped by signature."""
        signatures = self._followers.signatures(self._reachable)
        groups: dict[Signature, list[int]] = {}
        for token, signature in zip(self._reachable.tolist(), signatures, strict=True):
            groups.setdefault(signature, []).append(token)
        return [(np.array(group, dtype=np.int64), sign) for sign, group in groups.items()]

    def sites(self, signature: Signature) -> tuple[int, ...]:
        """The merge sites of tokens with this signature, as nodes of a tree, sorted by bytes."""
        tree, ruled_out = self._tree, self._followers.ruled_out(signature)
        found: list[int] = []
        nodes = tree.covered(ruled_out, more_than=self._more_than)
        self._ruled_out[ruled_out] = True
        while len(nodes):
            is_open = np.array([self._may_be_split(node) for node in nodes.tolist()], dtype=bool)
            found += nodes[~is_open].tolist()
            nodes = tree.children(nodes[is_open])  # with one byte more it may be a site
            nodes = nodes[tree.last[nodes] - tree.first[nodes] > self._more_than]
        self._ruled_out[ruled_out] = False
        return tuple(sorted(found))

    def _may_be_split(self, node: int) -> bool:
        """Whether the bytes may follow as a shorter token that is not ruled out, then the rest."""
        return any(at == FALLBACK or not self._ruled_out[at] for at in self._beginnings(node))


class _Tabulated(Absorption[TargetId]):
    """Looks up which tokens may follow, instead of asking the merges about one pair at a time."""

    def __init__(self, bpe: BytePairEncoding[TargetId], followers: Followers) -> None:
        super().__init__(bpe)
        self._followers = followers
        self._ruled_out_by = lru_cache(maxsize=4096)(self._find_ruled_out)

    def _find_ruled_out(self, last: TargetId) -> NDArray[np.int32]:
        signature = self._followers.signatures(np.array([last]))[0]
        return self._followers.ruled_out(signature).astype(np.int32)

    def _some_follows(self, last: TargetId, indices: Sequence[int]) -> bool:
        ruled_out = self._ruled_out_by(last)
        if isinstance(indices, range):
            start, end = np.searchsorted(ruled_out, (indices.start, indices.stop)).tolist()
            return bool(end - start < len(indices))
        return not all(_contains(ruled_out, at) for at in indices)


def _contains(ordered: NDArray[np.int32], value: int) -> bool:
    at = int(np.searchsorted(ordered, value))
    return at < len(ordered) and int(ordered[at]) == value


@dataclass(frozen=True, kw_only=True)
class PrefixTree:
    """A vocabulary as a tree of byte prefixes, in flat arrays: n tokens, m nodes.

    Sort the tokens by their bytes, and those that begin with the same prefix are neighbours. Every
    different prefix is a *node*. Nodes are numbered depth first, parents before their children.

    Example (Bielik): `▁Polish`, `▁Polit`, `▁Political`, `▁Politics`, `▁Politiker`, `▁Poll` are
    neighbours. The node of `▁Polit` has the four tokens in the middle, and so has no shorter
    prefix: `covered` finds it for these four. Without `▁Polit` itself it finds that of `▁Politi`.


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
