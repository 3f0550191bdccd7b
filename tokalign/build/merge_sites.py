"""Where the target tokenizer would merge across a boundary, found from the merges alone.

A byte string is a *merge site* of a token if nothing that begins with these bytes may follow it: no
token that begins with them, and no shorter token together with the rest of them.

Example (Bielik): 31 tokens begin with `su`, and `▁War` rules out all of them, because it would be
merged with their `s`. It rules out the token `s`, too. So `su` is a merge site of `▁War`: the
boundary of `▁War` + `su…` is in no canonical encoding. `s` alone is not, for `st` may follow.

`PairValidity` says of one pair of tokens whether the second may follow, and explains the words used
here. `Followers` answers for a whole vocabulary. A merge of a and b crosses the boundary between a
token with a on its right spine and one with b on its left spine, if it happens while both stand
there. That depends on the token before the boundary through one number: how long a stays at its
edge. So each a has a list of the tokens that it may rule out, sorted by how long it has to stay for
that. A token rules out the beginning of the list of each a on its right spine, as far as that a
stays. Where these beginnings end is the *signature* of the token: tokens with equal signatures have
the same merge sites.

Example (Bielik): the merge of `ar` and `s` has rank 1829.

    `ar` stays at the edge of `▁War` until max rank 6770, and at that of `▁par` until 1308
    `s` stays at the edge of `sz` until max rank 10875, and at that of `st` until 59

So `sz` is in the list of `ar`, and `ar` has to stay beyond 1829 to rule it out: `▁War` does, `▁par`
does not. `st` is not in the list: its `s` is gone before the merge. The encodings `▁War` + `st` and
`▁par` + `sz` are canonical, `▁War` + `sz` is not (it would be `▁Wars` + `z`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.bpe.absorption import FALLBACK, LONGEST, MIN_FANOUT, Absorption
from tokalign.tokenizer.bpe.encoder import BytePairEncoding
from tokalign.tokenizer.bpe.validity import Merges
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Ints = NDArray[np.int64]

Signature = tuple[int, ...]
"""Where the ruled-out beginnings of some lists end, as indices into all lists joined."""

_CHUNK = 1 << 19  # pairs of a merge and a token that are looked at together: 60 MB
_MOST = (1 << 32) - 2  # NEVER, where a stay is packed into 32 bits


def find_merge_sites(
    target: Tokenizer[TargetId],
    *,
    more_than: int = MIN_FANOUT,
    progress: Callable[[int], None] = lambda _: None,
) -> MergeSites:
    """Find for every target token the shortest merge sites with which many tokens begin.

    Exact and complete within a piece for every byte string of at most `LONGEST` bytes with which
    more than `more_than` tokens begin; `Absorption` derives the others. Where the merges are not
    known there are none.
    progress: called with the number of tokens done since the last call.
    Cost: 1.4 s for 32,000 tokens, 9 s for 150,000. Source: rust-gems bpe README, corollary IIIa.
    """
    rows = np.zeros(len(target.vocabulary), dtype=np.uint32)
    if target.level is not Level.ALIGNED:
        return MergeSites(rows, [()])
    spelled, followers = target.bpe.order.spelled, Followers(target.bpe)
    most = range(1, LONGEST + 1)
    begins = Counter(token[:size] for token in spelled for size in most[: len(token)])
    prefixes = sorted(prefix for prefix, count in begins.items() if count > more_than)
    ranges = [target.bpe.order.starting_with(prefix) for prefix in prefixes]
    firsts = [first for first, _ in ranges]
    absorption = _Tabulated(target.bpe, followers)
    beginnings = cache(lambda number: absorption.beginnings(prefixes[number]))

    def sites(signature: Signature) -> Iterator[bytes]:
        """In every run of neighbours that are ruled out, the shortest prefixes of it alone."""
        ruled_out = followers.ruled_out(signature)
        framed = np.concatenate(([False], ruled_out, [False]))
        bounds = np.flatnonzero(framed[1:] != framed[:-1])
        starts, ends = bounds[::2], bounds[1::2]
        long = ends - starts > more_than
        for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
            number = bisect_left(firsts, start)
            while number < len(firsts) and firsts[number] < end:
                last = ranges[number][1]
                # The bytes may also follow as a shorter token that is not ruled out, then the rest.
                if last <= end and all(
                    at != FALLBACK and ruled_out[at] for at in beginnings(number)
                ):
                    yield prefixes[number]
                    number = bisect_left(firsts, last)  # longer ones come in between
                else:
                    number += 1

    numbers: dict[tuple[bytes, ...], int] = {(): 0}
    groups = defaultdict[Signature, list[TargetId]](list)
    for token, signature in followers.signatures.items():
        groups[signature].append(token)
    for signature, tokens in groups.items():
        rows[tokens] = numbers.setdefault(tuple(sites(signature)), len(numbers))
        progress(len(tokens))
    return MergeSites(rows, list(numbers))


class _Edges(NamedTuple):
    """`EdgeToken`s as arrays, i64[rows]. owner: the number of the token at whose edge each is."""

    owner: Ints
    id: Ints
    entered: Ints
    left: Ints
    blocking_rank: Ints

    @classmethod
    def of(cls, rows: array[int]) -> _Edges:
        return cls(*np.frombuffer(rows, dtype=np.int64).reshape(-1, 5).T)

    def where(self, rows: Ints) -> _Edges:
        return _Edges(*(column[rows] for column in self))


class Followers:
    """The tokens of an order that each of them rules out; see the module.

    There are two lists for each a: sorted by the `blocking_rank` that a needs if a enters after b,
    else by the max rank at which a may leave. Cost to build: 1 s for 32,000 tokens.
    """

    def __init__(self, bpe: BytePairEncoding[TargetId]) -> None:
        validity, order = bpe.validity, bpe.order.ids
        self._tokens = list[TargetId]()
        self._whole_only = np.ones(len(order), dtype=bool)
        entered = np.full(len(bpe.tokens), -1, dtype=np.int64)
        left, right = array("q"), array("q")
        for place, token in enumerate(order):
            if validity.reachable(token):
                owner = len(self._tokens)
                self._whole_only[place] = False
                self._tokens.append(token)
                entered[token] = validity.derivation(token).max_rank
                for rows, spine in ((left, validity.left_spine), (right, validity.right_spine)):
                    for edge in spine(token):
                        rows.extend((owner, *edge))
        self._places = np.flatnonzero(~self._whole_only).astype(np.int32)
        self._right = _Edges.of(right)
        crossings = self._crossings(bpe.merges, entered, _Edges.of(left))
        parts = [np.concatenate(column) for column in zip(*crossings, strict=True)]
        keys, follower = parts or (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
        by_need = np.argsort(keys, kind="stable")
        self._keys, self._follower = keys[by_need], follower[by_need]
        self._begins = np.searchsorted(self._keys, np.arange(2 * len(bpe.tokens) + 1) << 32)

    def _crossings(
        self, merges: Merges, entered: Ints, edges: _Edges
    ) -> Iterator[tuple[Ints, NDArray[np.int32]]]:
        """(list << 32 | stay needed + 1, position of the follower) of every crossing, in chunks.
        entered: the max rank at which each token is made. edges: the left ones of all tokens."""
        b = edges.where(np.argsort(edges.id, kind="stable"))
        starts = np.searchsorted(b.id, np.arange(len(entered) + 1))
        pairs, ranks = merges.to_arrays()
        left, right = pairs >> 32, pairs & 0xFFFFFFFF
        sizes = starts[right + 1] - starts[right]
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(ends, np.arange(_CHUNK, sizes.sum(), _CHUNK))
        for some in np.split(np.arange(len(pairs)), np.unique(cuts)):
            counts = sizes[some]
            each = np.repeat(some, counts)
            rows = np.arange(len(each)) + np.repeat(
                starts[right[some]] - np.cumsum(counts) + counts, counts
            )
            in_time = ranks[each] <= b.left[rows]
            each = each[in_time]
            a = left[each]
            yield from self._entries(a, entered[a], ranks[each], b.where(rows[in_time]))

    def _entries(
        self, a: Ints, entered: Ints, rank: Ints, b: _Edges
    ) -> Iterator[tuple[Ints, NDArray[np.int32]]]:
        """The entries of the lists for these merges; see `validity.crosses`."""
        a_last = (entered > b.entered) & (b.left >= entered)
        yield 2 * a[a_last] << 32 | rank[a_last] + 1, self._places[b.owner[a_last]]
        b_last = (entered <= b.entered) & (rank <= b.blocking_rank)
        needed = np.maximum(rank, b.entered)[b_last]
        yield 2 * a[b_last] + 1 << 32 | needed + 1, self._places[b.owner[b_last]]

    @cached_property
    def signatures(self) -> dict[TargetId, Signature]:
        """The signature of each token that the merges make."""
        a = self._right
        lists = np.concatenate([2 * a.id, 2 * a.id + 1])
        stay = np.concatenate([a.blocking_rank, a.left])
        ends = np.searchsorted(self._keys, lists << 32 | np.minimum(stay, _MOST) + 1)
        owner, some = np.concatenate([a.owner, a.owner]), ends > self._begins[lists]
        ends_of: list[list[int]] = [[] for _ in self._tokens]
        for number, end in zip(owner[some].tolist(), ends[some].tolist(), strict=True):
            ends_of[number].append(end)
        return dict(zip(self._tokens, map(tuple, ends_of), strict=True))

    def ruled_out(self, signature: Signature) -> NDArray[np.bool_]:
        """Which tokens of the order may not follow within a piece, by their positions there."""
        ruled_out = self._whole_only.copy()
        begins = self._begins[np.searchsorted(self._begins, signature, side="left") - 1]
        for begin, end in zip(begins.tolist(), signature, strict=True):
            ruled_out[self._follower[begin:end]] = True
        return ruled_out


class _Tabulated(Absorption[TargetId]):
    """Looks up which of many tokens may follow, instead of asking about one pair at a time."""

    def __init__(self, bpe: BytePairEncoding[TargetId], followers: Followers) -> None:
        super().__init__(bpe)
        self._ruled_out_by = lru_cache(maxsize=256)(
            lambda last: followers.ruled_out(followers.signatures[last])
        )

    def _some_follows(self, last: TargetId, indices: Sequence[int]) -> bool:
        if len(indices) <= MIN_FANOUT:
            return super()._some_follows(last, indices)
        return not self._ruled_out_by(last)[indices[0] : indices[-1] + 1].all()
