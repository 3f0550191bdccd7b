"""Trees of drawn ids that a draft model grows, pass by pass (`draft/drawn_places.py`).

Every draft token after the first ids is one target token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType

from tokalign.runtime.draft.drawn_places import Place, tree_after
from tokalign.runtime.interfaces import DraftSampler, Pending, Shortlist
from tokalign.runtime.proposal import Array
from tokalign.runtime.translation.base import Translated
from tokalign.runtime.translation.growth import Branches
from tokalign.tables.alignment import Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_SOURCE = "draft"


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
        tree, distributions = tree_after(self._text, _SOURCE)
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
