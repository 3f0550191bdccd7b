"""Trees of drawn ids, for a verifier that accepts by the distributions they were drawn from.

Ids that follow the same id are drawn without replacement, one after the other. Whether one more is
drawn may depend on nothing that is drawn in that place or deeper in the tree; otherwise its
distribution would not be the one that the verifier is told. So the shape of a tree is settled
before anything is drawn (`shape_of`). Every draft token after the first ids is one target token.
The law of acceptance is in `runtime/mlx/rejection.py`, its proof in `docs/lossless.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType
from typing import Any, TypeAlias

from tokalign.runtime.interfaces import DraftSampler, Pending, Shortlist
from tokalign.runtime.proposal import Array
from tokalign.runtime.translation.base import Translated
from tokalign.runtime.translation.growth import Branches
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_ACCEPTED = (0.6, 0.2, 0.1, 0.05)
"""How often the first, second, ... candidate in a place is assumed to be accepted."""

_SOURCE = "draft"

Shape: TypeAlias = tuple[Any, ...]
"""For each id that follows, in the order drawn, the shape of what follows it; () for nothing."""


@cache
def shape_of(depth: int, count: int) -> Shape:
    """The tree of `count` ids, at most `depth` deep, of which most are expected to be accepted.

    Example: with 2 and 4 the text is followed by two ids, the first of which is followed by two:
    (((), ()), ()).
    Source: the greedy shape of "Sequoia" (Chen et al., 2024), with the same rates everywhere.
    """
    chosen: set[tuple[int, ...]] = set()
    heap: list[tuple[float, tuple[int, ...]]] = [(-_ACCEPTED[0], (0,))]
    while heap and len(chosen) < count:
        reached, path = heappop(heap)
        chosen.add(path)
        above, place = path[:-1], path[-1]
        if place + 1 < len(_ACCEPTED):
            heappush(heap, (reached / _ACCEPTED[place] * _ACCEPTED[place + 1], (*above, place + 1)))
        if len(path) < depth:
            heappush(heap, (reached * _ACCEPTED[0], (*path, 0)))

    def below(path: tuple[int, ...]) -> Shape:
        following = [(*path, place) for place in range(len(_ACCEPTED))]
        return tuple([below(one) for one in following if one in chosen])

    return below(())


def can_draw_trees(sampler: DraftSampler | None) -> bool:
    """Whether the ids of a tree are drawn; logits processors would need each row's history."""
    return sampler is not None and not sampler.shares_noise and not sampler.needs_history


@dataclass(slots=True)
class Place:
    """A place in the tree after which ids are drawn: the text's end, or that of a drawn id.

    shape: of what follows. row: of the branches, -1 at the end of the text. ids: that lead here
    from the place before; the first of them was drawn, and the others are sure to follow it.
    distribution: f[1, vocabulary] that the places following were drawn from.
    """

    shape: Shape
    ids: tuple[TargetId, ...] = ()
    depth: int = 0
    row: int = -1
    following: list[Place] = field(default_factory=list)
    distribution: Array | None = None


class DrawnTree:
    """A tree of drawn ids while it grows. `finish` is called exactly once.

    text: the end of the text. Its `following` may be there already, with rows for those that have a
    shape; otherwise the first pass draws it. start: the position of the first ids. shared,
    target_of: as in `start_tree`.
    """

    def __init__(
        self,
        branches: Branches,
        text: Place,
        *,
        start: int,
        sampler: DraftSampler,
        target_of: Callable[[DraftId], TargetId | None],
        shared: Intersection | None = None,
        counts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._branches, self._text, self._start = branches, text, start
        self._sampler, self._target_of, self._shared = sampler, target_of, shared
        self._counts = counts
        self._distributions: Array = None  # of the places of the pass under way
        going = [one for one in text.following if one.shape]
        self._pending = self._look(going if text.following else [text])

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        while self._pending is not None:
            places, pending = self._pending
            for row, (place, found) in enumerate(zip(places, pending.read(), strict=True)):
                if found.ids:  # none if the context is full
                    place.distribution = self._distributions[row : row + 1]
                    place.following = self._drawn_after(place, found)
            self._pending = self._look(
                [one for place in places for one in place.following if one.shape]
            )
        tree, distributions = _tree_after(self._text)
        return Translated((), self._counts, tree=tree, distributions=distributions)

    def _look(
        self, places: Sequence[Place]
    ) -> tuple[Sequence[Place], Pending[list[Shortlist]]] | None:
        """Start the pass that draws what follows these places."""
        if not places:
            return None
        positions = [self._start + place.depth for place in places]

        def draw(logits: Array) -> Array:
            scores, self._distributions = self._sampler.draw_several(logits, positions=positions)
            return scores

        count = max(len(place.shape) for place in places)
        return places, self._branches.look(count, self._shared, draw)

    def _drawn_after(self, place: Place, found: Shortlist) -> list[Place]:
        """The ids with the largest scores, the largest first; they get rows if they go on."""
        scored = sorted(zip(found.logprobs, found.ids, strict=True), reverse=True)
        drawn = []
        for (score, token), shape in zip(scored, place.shape, strict=False):
            target = self._target_of(token)
            if score == -inf or target is None:
                break
            row = self._branches.extend(place.row, token) if shape else -1
            drawn.append(Place(shape, (target,), place.depth + 1, row))
        return drawn


def _tree_after(text: Place) -> tuple[TokenTree, tuple[Array | None, ...]]:
    """The drawn tree, each id's first candidate before the others, and its distributions."""
    ids: list[TargetId] = []
    parents: list[int] = []
    distributions = [text.distribution]  # of the text, then of each id

    def add(place: Place, last: int) -> None:
        for one in place.following:
            at = last
            for token in one.ids:
                ids.append(token)
                parents.append(at)
                distributions.append(None)
                at = len(ids) - 1
            distributions[-1] = one.distribution
            add(one, at)

    add(text, -1)
    return TokenTree(tuple(ids), tuple(parents), (_SOURCE,) * len(ids)), tuple(distributions)
