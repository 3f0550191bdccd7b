"""Trees of drawn ids, for a verifier that accepts by the distributions they were drawn from.

Ids that follow the same id are drawn without replacement, one after the other. Whether one more is
drawn may depend on nothing that is drawn in that place or deeper in the tree; otherwise its
distribution would not be the one that the verifier is told. So the shape of a tree is settled
before anything is drawn (`shape_of`). The law of acceptance is in `runtime/mlx/rejection.py`, its
proof in `docs/lossless.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias

from tokalign.runtime.proposal import Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.interfaces import DraftSampler

_ACCEPTED = (0.6, 0.2, 0.1, 0.05)
"""How often the first, second, ... candidate in a place is assumed to be accepted."""

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

    shape: of what follows. ids: that lead here from the place before; the first of them was drawn,
    the others are sure to follow it. row: of those that a draft model computes, -1 for the text.
    distribution: f[1, vocabulary] that the places following were drawn from.
    """

    shape: Shape
    ids: tuple[TargetId, ...] = ()
    depth: int = 0
    row: int = -1
    following: list[Place] = field(default_factory=list)
    distribution: Array | None = None


def tree_after(text: Place, source: str) -> tuple[TokenTree, tuple[Array | None, ...]]:
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
    return TokenTree(tuple(ids), tuple(parents), (source,) * len(ids)), tuple(distributions)
