"""Translations that leave ids as they are: for one tokenizer, and as a baseline for two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import cast

import numpy as np

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
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class SharedIds:
    """Both models have the same ids, special tokens included; the caller vouches for it.

    sampler: how the draft's ids are chosen; None takes the likeliest one.
    """

    def __init__(self, sampler: DraftSampler | None = None) -> None:
        self._sampler = sampler

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        ids = cast("Sequence[DraftId]", context.ids)
        tree = start_tree(
            context,
            session,
            ids,
            steps,
            alternatives=alternatives,
            target_of=TargetId,
            sampler=self._sampler,
        )
        if tree is not None:
            return tree
        if self._sampler is not None:
            drawn = session.draw(ids, steps, sampler=self._sampler, after=context.ids)
            return PendingDrawnDraft(drawn)
        return PendingGreedyDraft(session.draft(ids, steps), _as_they_are)


class RawIds:
    """`raw`: ids of one vocabulary are read in the other one as they are, whatever they mean.

    Where the two tokenizers differ, the draft model reads other text than the target, and what it
    drafts is right by chance, or where both vocabularies have the same token at the same place. Ids
    that the other vocabulary does not have are left out of the draft's context, and end a draft.

    Source: the "no translation" condition of the Polish study, which is what mlx-lm does with two
    tokenizers. It is kept as a baseline.
    """

    def __init__(self, pair: Pair) -> None:
        self._sizes = len(pair.draft.vocabulary), len(pair.target.vocabulary)

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        known = [DraftId(token) for token in context.ids if token < self._sizes[0]]
        return PendingGreedyDraft(session.draft(known, steps), self._translate)

    def _translate(self, drafted: GreedyDraft) -> Translated:
        known = takewhile(lambda token: token < self._sizes[1], drafted.ids)
        return Translated(tuple([TargetId(token) for token in known]))


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
        # This is not the inverse: the target's several ends of a turn may be one to the draft.
        self._to_target = map_specials(draft, target)
        self._spelled = _spell_unknown(pair, self._to_draft)
        self._sampler = sampler
        self._sizes = len(draft.vocabulary), len(target.vocabulary)
        self._ids: list[DraftId] = []
        self._seen = 0

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        for token in context.ids[self._seen :]:
            self._ids += self._spelled.get(token) or (self._to_draft.get(token, _same(token)),)
        self._seen = len(context.ids)
        tree = start_tree(
            context,
            session,
            self._ids,
            steps,
            alternatives=alternatives,
            target_of=self._target_of,
            shared=None if self._sampler is None else self._shared,
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
        return PendingGreedyDraft(session.draft(self._ids, steps), self._translate)

    def _translate(self, drafted: GreedyDraft) -> Translated:
        return Translated(tuple(map(self._target_of, drafted.ids)))

    def _target_of(self, token: DraftId) -> TargetId:
        return self._to_target.get(token, TargetId(token))

    @cached_property
    def _shared(self) -> Intersection:
        draft_ids, target_ids = (np.arange(size, dtype=np.int32) for size in self._sizes)
        to_target = np.where(draft_ids < len(target_ids), draft_ids, NO_TOKEN)
        to_target[list(self._to_target)] = list(self._to_target.values())
        to_draft = target_ids
        to_draft[list(self._to_draft)] = list(self._to_draft.values())
        return Intersection(to_target, to_draft)


def _same(token: TargetId) -> DraftId:
    """An ordinary id, which is the same in both vocabularies."""
    return DraftId(token)


def _spell_unknown(
    pair: Pair, known: Mapping[TargetId, DraftId]
) -> dict[TargetId, Sequence[DraftId]]:
    """For special tokens that the draft lacks: their spelling in draft ids, read as text."""
    specials = pair.target.vocabulary.specials
    return {
        TargetId(token): cast("Sequence[DraftId]", pair.draft.bpe.encode(spelling.encode()))
        for token, spelling in specials.items()
        if token not in known
    }
