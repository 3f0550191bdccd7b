"""`intersection`: the published translation that maps single tokens; kept as a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSampler, DraftSession, GreedyDraft
from tokalign.runtime.translation.base import (
    Pair,
    PendingDraft,
    PendingDrawnDraft,
    PendingGreedyDraft,
    Translated,
)
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.runtime.translation.token_trees import start_tree
from tokalign.tables.alignment import Intersection
from tokalign.tokenizer.vocabulary import TargetId


class TokenIntersection:
    """One draft token is one target token with the same bytes.

    The draft may choose only tokens that the target has too; special tokens are matched by role.
    sampler: how the draft's ids are chosen, which then happens over target ids; None takes the
    likeliest one.
    Source: token-level intersection (TLI) of "Accelerating LLM Inference with Lossless Speculative
    Decoding Algorithms for Heterogeneous Vocabularies" (Timor et al., 2025), on a byte-exact map.
    """

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        intersection: Intersection,
        sampler: DraftSampler | None = None,
    ) -> None:
        self._text, self._sampler = text, sampler
        self._shared = pair.with_roles(intersection)

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        self._text.follow(context.ids)
        ids, shared = self._text.ids, self._shared
        tree = start_tree(
            context,
            session,
            ids,
            steps,
            alternatives=alternatives,
            target_of=shared.target_of,
            shared=shared,
            sampler=self._sampler,
        )
        if tree is not None:
            return tree
        if self._sampler is not None:
            return PendingDrawnDraft(
                session.draw(ids, steps, sampler=self._sampler, after=context.ids, shared=shared)
            )
        return PendingGreedyDraft(session.draft(ids, steps, shared), self._translate)

    def _translate(self, drafted: GreedyDraft) -> Translated:
        ids = self._shared.draft_to_target[np.array(drafted.ids, dtype=int)].tolist()
        counts: Mapping[str, int] = {"unmapped": drafted.masked_out} if drafted.masked_out else {}
        return Translated(cast("tuple[TargetId, ...]", tuple(ids)), counts)
