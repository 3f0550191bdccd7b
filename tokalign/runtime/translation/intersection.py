"""`intersection`: the published translation that maps single tokens; kept as a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import (
    DraftSampler,
    DraftSession,
    GreedyDraft,
    Pending,
    Shortlist,
)
from tokalign.runtime.translation.base import (
    Pair,
    PendingDraft,
    PendingDrawnDraft,
    PendingGreedyDraft,
    Translated,
)
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.runtime.translation.growth import TEXT, Extend, Extension, Growth, Node, join
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_ROOTS = 8
"""How many first ids are listed; some more than are gone on after, as they cost no pass."""


@dataclass(frozen=True, slots=True)
class PendingTree:
    """A pass under way for the first ids of a tree, and what grows the tree from them."""

    first: Pending[list[Shortlist]]
    grow: Callable[[Sequence[Node]], Growth]
    extend: Extend

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        [found] = self.first.read()
        listed = zip(found.logprobs, found.ids, strict=True)
        roots = [
            Node(logprob, -1, 0, token, *self.extend(TEXT, token))
            for logprob, token in sorted(listed, reverse=True)
        ]
        return Translated((), tree=join(self.grow(roots).finish(), 1.0))


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
        self, context: Context, session: DraftSession, steps: int, *, trees: bool = False
    ) -> PendingDraft:
        """See `Translation`."""
        self._text.follow(context.ids)
        ids, shared = self._text.ids, self._shared
        if trees and self._sampler is None and session.can_branch:
            grow = partial(
                Growth, session, ids, steps=steps - 1, extend=self._extend, shared=shared
            )
            return PendingTree(
                session.branch(ids, EMPTY_TREE, None, _ROOTS, shared), grow, self._extend
            )
        if self._sampler is not None:
            return PendingDrawnDraft(
                session.draw(ids, steps, sampler=self._sampler, after=context.ids, shared=shared)
            )
        return PendingGreedyDraft(session.draft(ids, steps, shared), self._translate)

    def _extend(self, node: Node, token: DraftId) -> Extension:
        """See `growth.Extend`."""
        target = self._shared.target_of(token)
        ids = None if target is None or node.ids is None else (*node.ids, target)
        return Extension(b"", ids, goes_on=ids is not None)

    def _translate(self, drafted: GreedyDraft) -> Translated:
        ids = self._shared.draft_to_target[np.array(drafted.ids, dtype=int)].tolist()
        counts: Mapping[str, int] = {"unmapped": drafted.masked_out} if drafted.masked_out else {}
        return Translated(cast("tuple[TargetId, ...]", tuple(ids)), counts)
