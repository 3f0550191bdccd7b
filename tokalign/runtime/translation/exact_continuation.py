"""The second phase of `exact`: what follows the chosen cover, read and put into target ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tokalign.runtime.interfaces import GreedyDraft, Pending
from tokalign.runtime.translation.base import Alternative, Pair, Translated
from tokalign.runtime.translation.boundary import Boundary
from tokalign.runtime.translation.cover_search import TranslatedCover
from tokalign.runtime.translation.growth import Growth, join
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@dataclass(frozen=True, slots=True)
class NothingDrafted:
    """A draft of nothing, where no cover could be translated."""

    counts: Mapping[str, int]

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        return Translated((), self.counts)


@dataclass(slots=True)
class GrownDraft:
    """The likeliest covers, and the passes under way that grow a tree after them.

    start, counts, chain: as in `Continuation`. possible: as in `join`.
    """

    growth: Growth
    start: int
    possible: float
    counts: Counter[str]
    chain: tuple[TargetId, ...] = ()

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        tree = join(self.growth.finish(), self.possible)
        self.chain = tree.first_chain.ids
        return Translated((), self.counts, tree=tree)


@dataclass(slots=True)
class Continuation:
    """A chosen cover, and the passes under way that draft on after it.

    start: how many target ids are committed before it.
    drafted, drawn: at most one of them is under way, depending on how the ids are chosen.
    alternatives: first tokens that may be proposed, the cover's own included.
    probability: of first tokens, where it is known how often they are right.
    chain: the ids that were proposed, once the draft is finished.
    """

    pair: Pair
    boundary: Boundary
    cover: TranslatedCover
    start: int
    counts: Counter[str]
    drafted: Pending[GreedyDraft] | None = None
    drawn: Pending[list[TargetId]] | None = None
    alternatives: Sequence[Alternative] = ()
    probability: Mapping[TargetId, float] = field(default_factory=dict)
    chain: tuple[TargetId, ...] = ()

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        if self.drafted is not None:
            self.chain = self._join_drafted(self.drafted.read().ids)
        elif self.drawn is not None:
            self.chain = self._join_drawn(self.drawn.read())
        else:
            self.chain = self.cover.ids
        first = self.chain[:1]
        return Translated(
            self.chain,
            self.counts,
            probabilities=tuple([self.probability[t] for t in first if t in self.probability]),
            alternatives=tuple([other for other in self.alternatives if other[0] not in first]),
        )

    def _join_drafted(self, drafted: Sequence[DraftId]) -> tuple[TargetId, ...]:
        """Target ids of the cover and what was drafted; of less if its end would be absorbed."""
        tokens, size = self.pair.draft.vocabulary.tokens, len(self.pair.draft.vocabulary)
        spelled = [tokens[token] if token < size else b"" for token in drafted]
        end: tuple[TargetId, ...] = ()
        if not all(spelled):
            ordinary, end = self.pair.split_end(drafted)
            del spelled[len(ordinary) :]
        while (ids := self.boundary.encode(self.cover.data + b"".join(spelled))) is None:
            self.counts["absorbed"] += 1
            end = ()
            if not spelled:
                return ()
            spelled.pop()
        return (*ids, *end)

    def _join_drawn(self, drawn: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Target ids of the cover and those drawn after it, their text encoded as a whole."""
        tokens = self.pair.target.vocabulary.tokens
        ordinary = list(takewhile(bool, [tokens[i] for i in drawn]))
        whole = self.boundary.encode(self.cover.data + b"".join(ordinary))
        return (*(whole or self.cover.ids), *drawn[len(ordinary) if whole else 0 :])
