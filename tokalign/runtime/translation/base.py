"""What every translation from draft ids to target ids has in common.

A translation works in two phases. `begin` has the draft model's session start its passes; `finish`
of what it returns waits for them and turns the drafted ids into target ids. Between the two the
host's time is free.

The translations: `shared_ids.py` (both models have the same ids), `retokenizing.py` and
`intersection.py` (published ones, kept as baselines), `exact.py` (this project's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSession, GreedyDraft, Pending
from tokalign.runtime.text import token_bytes
from tokalign.tables.alignment import Intersection, match_roles
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Alternative: TypeAlias = tuple[TargetId, float]
"""An id that may come in the place of another one, and how probable it is."""


class Translated(NamedTuple):
    """Target ids to propose, and what happened on the way (`docs/metrics.md` lists the counts).

    probabilities: of the leading ids, as in `TokenTree`, as far as they are known.
    alternatives: other ids for the place of the first one, the likeliest first.
    tree: what a draft model's tree says instead, with all probabilities; `ids` are empty then.
    keeps_chain: propose the tree's likeliest chain however unlikely it is.
    """

    ids: tuple[TargetId, ...]
    counts: Mapping[str, int] = MappingProxyType({})
    probabilities: tuple[float, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    tree: TokenTree = EMPTY_TREE
    keeps_chain: bool = False


class PendingDraft(Protocol):
    """A draft whose passes are under way."""

    def finish(self) -> Translated:
        """Wait for the passes and translate what they drafted. Call it exactly once."""
        ...


class Translation(Protocol):
    """Drafts what follows a context of target ids, in target ids. One object per request."""

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """Start drafting with at most `steps` (1 or more) passes.

        alternatives: how many ids may be proposed besides one for each pass, so that passes extend
        several branches; 0 for a target that cannot verify a tree.

        The first pass also brings the draft model's cache up to date with the context. Nothing is
        proposed where nothing can be translated: slower, never wrong.
        """
        ...


@dataclass(frozen=True, slots=True)
class PendingGreedyDraft:
    """Likeliest ids under way, and what translates them."""

    drafted: Pending[GreedyDraft]
    translate: Callable[[GreedyDraft], Translated]

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        return self.translate(self.drafted.read())


@dataclass(frozen=True, slots=True)
class PendingDrawnDraft:
    """Drawn ids under way. They are target ids and need no translation."""

    drawn: Pending[list[TargetId]]

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        return Translated(tuple(self.drawn.read()))


@dataclass(frozen=True)
class Pair:
    """Two tokenizers, and how their special tokens correspond."""

    target: Tokenizer[TargetId]
    draft: Tokenizer[DraftId]

    def split_end(self, drafted: Sequence[DraftId]) -> tuple[list[DraftId], tuple[TargetId, ...]]:
        """Cut drafted ids before the first special one.

        Returns: the ids before it, and the target's counterpart of the special id; the latter is
        empty if there is no special id, or no counterpart. Ids that a padded model has beyond its
        vocabulary count as special.
        """
        tokens = self.draft.vocabulary.tokens
        ordinary: list[DraftId] = []
        for token in drafted:
            if not token_bytes(tokens, token):
                break
            ordinary.append(token)
        else:
            return ordinary, ()
        special = self.roles().get(drafted[len(ordinary)])
        return ordinary, () if special is None else (special,)

    def roles(self) -> dict[DraftId, TargetId]:
        """The draft's special tokens that have a counterpart of the same role."""
        return match_roles(self.draft.vocabulary.roles, self.target.vocabulary.roles)

    def with_roles(self, shared: Intersection) -> Intersection:
        """An intersection in which special tokens stand for their counterparts, too."""
        to_target = shared.draft_to_target.copy()
        for draft_id, target_id in self.roles().items():
            to_target[draft_id] = target_id
        return Intersection(to_target, shared.target_to_draft)
