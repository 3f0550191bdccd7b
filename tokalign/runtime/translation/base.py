"""What every translation from draft ids to target ids has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from tokalign.runtime.rounds import UNBOUNDED, Proposal
from tokalign.tables.alignment import NO_TOKEN, FirstIds, Intersection, match_roles
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, token_bytes

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession

SOURCE = "draft"

Learned: TypeAlias = Callable[[int], Sequence[float]]
"""How often the first ids of a draft were right so far, if those before them were."""


class Asked(NamedTuple):
    """What a drafter asks of a translation.

    steps: passes at most, 1 or more; the first one also brings the draft model's cache up to date.
    alternatives: how many ids may be proposed besides one for each pass, so that passes extend
    several branches; 0 for a target that cannot verify a tree.
    learned: gives the probabilities that the draft model does not state.
    guesses: gives what others expect after the text, for a first pass that reads that, too.
    """

    steps: int
    alternatives: int
    learned: Learned
    guesses: Callable[[], TokenTree[TargetId]] = lambda: EMPTY_TREE


class Translation(Protocol):
    """Drafts what follows a context of target ids, in target ids. One object per request."""

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        """The draft's ids of all of this text, which only grows."""

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        """Draft what follows `ids`; every id has a probability. Nothing is proposed where nothing
        can be translated: slower, never wrong."""


def chain_with_leaves(
    ids: Sequence[TargetId],
    learned: Learned,
    *,
    stated: Sequence[float] = (),
    leaves: Sequence[tuple[TargetId, float]] = (),
) -> TokenTree[TargetId]:
    """A drafted chain, and other ids in the place of its first one. stated: probabilities of the
    leading ids. leaves: each with its probability."""
    length = len(ids)
    if not length:
        return EMPTY_TREE
    count = length + len(leaves)
    return TokenTree(
        (*ids, *[token for token, _ in leaves]),
        (*range(-1, length - 1), *[-1] * len(leaves)),
        (SOURCE,) * count,
        (*stated, *learned(length)[len(stated) :], *[probability for _, probability in leaves]),
    )


@dataclass(frozen=True)
class Pair:
    """Two tokenizers, and how their special tokens correspond. size: how many ids the target model
    has; its tokenizer may know more, which are never drafted."""

    target: Tokenizer[TargetId]
    draft: Tokenizer[DraftId]
    size: int = UNBOUNDED

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
        """The draft's special tokens that have a counterpart of the same role. None begins a text:
        one that begins and ends texts, such as `<|endoftext|>`, ends one in a draft."""
        own = replace(self.draft.vocabulary.roles, bos=None)
        roles = match_roles(own, self.target.vocabulary.roles)
        return {own: token for own, token in roles.items() if token < self.size}

    def with_roles(self, shared: Intersection) -> Intersection:
        """An intersection in which special tokens stand for their counterparts, too."""
        to_target = np.where(shared.draft_to_target < self.size, shared.draft_to_target, NO_TOKEN)
        for draft_id, target_id in self.roles().items():
            to_target[draft_id] = target_id
        return Intersection(to_target, shared.target_to_draft)

    def first_ids(self, shared: Intersection) -> FirstIds:
        """The first target ids of all draft tokens; special tokens stand for their counterparts.
        Computed once per process and pair. Cost: 10 to 25 µs for each token the target lacks."""
        encoded, known = _encoded(self.draft, self.target), self.with_roles(shared).draft_to_target
        first = np.where(known == NO_TOKEN, encoded.first, known)
        return FirstIds(np.where(first < self.size, first, NO_TOKEN), encoded.counts)


@lru_cache(maxsize=8)
def _encoded(draft: Tokenizer[DraftId], target: Tokenizer[TargetId]) -> FirstIds:
    """The first ids of the draft tokens that are no tokens of the target."""
    tokens, ids = draft.vocabulary.tokens, target.vocabulary.id_of
    first = np.full(len(tokens), NO_TOKEN, dtype=np.int32)
    counts = np.ones_like(first)
    for token, spelled in enumerate(tokens):
        if spelled not in ids and (encoded := target.encoder.encode(spelled)):
            first[token], counts[token] = encoded[0], len(encoded)
    return FirstIds(first, counts)
