"""Translations that leave ids as they are, for models with one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import IncompatibleError
from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSampler, DraftSession, GreedyDraft
from tokalign.runtime.translation.base import (
    Pair,
    PendingDraft,
    PendingDrawnDraft,
    PendingGreedyDraft,
    Translated,
)
from tokalign.runtime.translation.draft_text import map_specials
from tokalign.runtime.translation.token_trees import start_tree
from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId

OtherId = TypeVar("OtherId", bound=int)


class SharedIds:
    """Both models have the same ids, special tokens included; the caller vouches for it.

    One of them may be padded to more ids than the other. The draft chooses among those that both
    have, and does not read the others.
    sizes: how many ids the draft model has, and the target.
    sampler: how the draft's ids are chosen; None takes the likeliest one.
    """

    def __init__(self, sizes: tuple[int, int], sampler: DraftSampler | None = None) -> None:
        self._sampler = sampler
        self._draft_size, target_size = sizes
        self._shared = None if self._draft_size == target_size else _same_ids(*sizes)
        self._ids: list[DraftId] = []
        self._seen = 0

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        self._ids += self.known(context.ids[self._seen :])
        self._seen = len(context.ids)
        tree = start_tree(
            context,
            session,
            self._ids,
            steps,
            alternatives=alternatives,
            target_of=TargetId,
            shared=self._shared,
            sampler=self._sampler,
        )
        if tree is not None:
            return tree
        if self._sampler is not None:
            drawn = session.draw(
                self._ids, steps, sampler=self._sampler, after=context.ids, shared=self._shared
            )
            return PendingDrawnDraft(drawn)
        return PendingGreedyDraft(session.draft(self._ids, steps, self._shared), _as_they_are)

    def known(self, ids: Sequence[TargetId]) -> list[DraftId]:
        """The ids that the draft model has, too."""
        return [DraftId(token) for token in ids if token < self._draft_size]


def _same_ids(draft_size: int, target_size: int) -> Intersection:
    """Equal ids stand for each other; what only the wider vocabulary has stands for nothing."""
    draft_ids = np.arange(draft_size, dtype=np.int32)
    target_ids = np.arange(target_size, dtype=np.int32)
    return Intersection(
        np.where(draft_ids < target_size, draft_ids, NO_TOKEN),
        np.where(target_ids < draft_size, target_ids, NO_TOKEN),
    )


def _as_they_are(drafted: GreedyDraft) -> Translated:
    return Translated(cast("tuple[TargetId, ...]", tuple(drafted.ids)))


class SameTokenizer:
    """`none`: both models have the same ids, except that special tokens may differ in number.

    sampler: as for `SharedIds`. Raises: IncompatibleError for two different tokenizers.
    """

    def __init__(self, pair: Pair, sampler: DraftSampler | None = None) -> None:
        target, draft = pair.target, pair.draft
        if target.fingerprint != draft.fingerprint:
            raise IncompatibleError(
                f"--translation none needs one tokenizer, but target and draft have two "
                f"({target.fingerprint[:12]} and {draft.fingerprint[:12]}); "
                "choose --translation intersection"
            )
        self._to_draft = map_specials(target, draft)
        self._shared = _same_ids(len(draft.vocabulary), len(target.vocabulary))
        # Special tokens may stand elsewhere, and the draft's may be unknown to the target. One map
        # is not the inverse of the other: the target's several ends of a turn may be one here.
        _replace(self._shared.draft_to_target, draft, map_specials(draft, target))
        _replace(self._shared.target_to_draft, target, self._to_draft)
        self._spelled = _spell_unknown(pair, self._to_draft)
        self._sampler = sampler
        self._ids: list[DraftId] = []
        self._seen = 0

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        for token in context.ids[self._seen :]:
            self._ids += self._spelled.get(token) or self._known(token)
        self._seen = len(context.ids)
        tree = start_tree(
            context,
            session,
            self._ids,
            steps,
            alternatives=alternatives,
            target_of=self._shared.target_of,
            shared=self._shared,
            sampler=self._sampler,
        )
        if tree is not None:
            return tree
        if self._sampler is not None:
            return PendingDrawnDraft(
                session.draw(
                    self._ids,
                    steps,
                    sampler=self._sampler,
                    after=context.ids,
                    shared=self._shared,
                )
            )
        return PendingGreedyDraft(session.draft(self._ids, steps, self._shared), self._translate)

    def _translate(self, drafted: GreedyDraft) -> Translated:
        found = map(self._shared.target_of, drafted.ids)
        return Translated(tuple([token for token in found if token is not None]))

    def _known(self, token: TargetId) -> Sequence[DraftId]:
        """The draft's id; none for an id that a padded target has beyond its vocabulary."""
        to_draft = self._shared.target_to_draft
        found = self._shared.draft_of(token) if token < len(to_draft) else None
        return () if found is None else (found,)


def _replace(ids: NDArray[np.int32], of: Tokenizer[Id], specials: Mapping[Id, OtherId]) -> None:
    """Have the special tokens of a tokenizer stand for these ids, and the others for nothing."""
    for token in of.vocabulary.specials:
        ids[token] = specials.get(token, NO_TOKEN)


def _spell_unknown(
    pair: Pair, known: Mapping[TargetId, DraftId]
) -> dict[TargetId, Sequence[DraftId]]:
    """For special tokens that the draft lacks: their spelling in draft ids, read as text."""
    specials = pair.target.vocabulary.specials
    return {
        TargetId(token): cast("Sequence[DraftId]", pair.draft.encoder.encode(spelling.encode()))
        for token, spelling in specials.items()
        if token not in known
    }
