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
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.absorption import FALLBACK, MIN_FANOUT, Absorption
from tokalign.bpe.encoder import BytePairEncoding
from tokalign.build.alignment.derivations import Derivations, Ints
from tokalign.build.alignment.followers import Followers, Signature
from tokalign.build.alignment.prefix_tree import PrefixTree
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


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
