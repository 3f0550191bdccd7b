"""Translations: how a draft model's ids become target ids.

A translation is one object per request. It owns the draft model's view of the context, has the
session draft, and turns what was drafted into target ids. The published ones are kept as baselines,
each as its authors describe it, except that the draft's context is always the right bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from tokalign.errors import IncompatibleError
from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Guesser, Session, Waiting
from tokalign.runtime.mlx.drawing import Drawn, Projection, draw
from tokalign.runtime.proposal import Array
from tokalign.runtime.text import token_bytes
from tokalign.runtime.translation.draft_text import DraftText, map_specials
from tokalign.tables.alignment import NO_TOKEN, Intersection, match_roles
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Alternative: TypeAlias = tuple[TargetId, float]
"""An id that may come in the place of another one, and how probable that is."""


class Translated(NamedTuple):
    """Target ids to propose, and what happened on the way (`docs/metrics.md` names the counts).

    probabilities: of the leading ids, as in `Guess`, as far as they are known.
    alternatives: other ids for the place of the first one, the likeliest first.
    distributions: as in `Proposal`.
    """

    ids: tuple[TargetId, ...]
    counts: Mapping[str, int] = MappingProxyType({})
    probabilities: tuple[float, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    distributions: tuple[Array | None, ...] = ()

    @classmethod
    def of(cls, drawing: Waiting[Drawn]) -> Waiting[Translated]:
        """What is drawn, as it is."""

        def translated() -> Translated:
            drawn = drawing()
            return cls(tuple(map(TargetId, drawn.ids)), distributions=tuple(drawn.distributions))

        return translated


class Translation(Protocol):
    """Drafts behind a context of target ids and answers in target ids."""

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        """Draft with at most `steps` (1 or more) passes, the catching up with the context included.

        It returns when the last of them is under way. Nothing is proposed where nothing can be
        translated: slower, never wrong.
        """
        ...


@dataclass(frozen=True)
class Pair:
    """Two tokenizers and how their special tokens correspond."""

    target: Tokenizer[TargetId]
    draft: Tokenizer[DraftId]

    def split_end(self, drafted: Sequence[int]) -> tuple[list[DraftId], tuple[TargetId, ...]]:
        """Drafted ids up to the first special one, and what that one is to the target.

        The second is empty if there is none, or if the target has no such token. What a padded
        model drafts beyond its vocabulary counts as special.
        """
        tokens = self.draft.vocabulary.tokens
        ordinary: list[DraftId] = []
        for token in drafted:
            if not token_bytes(tokens, token):
                break
            ordinary.append(DraftId(token))
        else:
            return ordinary, ()
        roles = match_roles(self.draft.vocabulary.roles, self.target.vocabulary.roles)
        special = roles.get(DraftId(drafted[len(ordinary)]))
        return ordinary, () if special is None else (special,)


class SharedIds:
    """Both models speak the same ids, special tokens included: the caller vouches for it.

    guesser: how a draft's choice is made; by default the likeliest id is taken.
    """

    def __init__(self, guesser: Guesser | None = None) -> None:
        self._guesser = guesser

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        if self._guesser is not None:
            ids = context.ids
            return Translated.of(draw(session, ids, steps, guesser=self._guesser, behind=ids))
        drafting = session.draft(context.ids, steps)
        return lambda: Translated(tuple(map(TargetId, drafting())))


class SameTokenizer:
    """`none`: both models speak the same ids, only special tokens may be numbered differently.

    guesser: as of `SharedIds`. Raises: IncompatibleError for two different tokenizers.
    """

    def __init__(
        self,
        target: Tokenizer[TargetId],
        draft: Tokenizer[DraftId],
        guesser: Guesser | None = None,
    ) -> None:
        if target.fingerprint != draft.fingerprint:
            raise IncompatibleError(
                f"--translation none needs one tokenizer, but target and draft have two "
                f"({target.fingerprint[:12]} and {draft.fingerprint[:12]}); "
                "choose --translation intersection"
            )
        self._spelled = {i: draft.bpe.encode(s.encode()) for i, s in _spellings(target, draft)}
        self._to_draft = cast(Mapping[int, int], map_specials(target, draft))
        # Not the inverse: several ends of a turn may become one.
        self._to_target = cast(Mapping[int, int], map_specials(draft, target))  # type: ignore[arg-type]
        self._guesser = guesser
        self._sizes = len(draft.vocabulary), len(target.vocabulary)
        self._ids: list[int] = []
        self._seen = 0

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        for token in context.ids[self._seen :]:
            self._ids += self._spelled.get(token) or (self._to_draft.get(token, token),)
        self._seen = len(context.ids)
        if self._guesser is not None:
            return Translated.of(
                draw(
                    session,
                    self._ids,
                    steps,
                    guesser=self._guesser,
                    behind=context.ids,
                    onto=self._onto,
                )
            )
        drafting, known = session.draft(self._ids, steps), self._to_target
        return lambda: Translated(tuple(TargetId(known.get(i, i)) for i in drafting()))

    @cached_property
    def _onto(self) -> Projection:
        ours, theirs = (np.arange(size, dtype=np.int32) for size in self._sizes)
        to_target = np.where(ours < len(theirs), ours, NO_TOKEN)
        to_target[list(self._to_target)] = list(self._to_target.values())
        theirs[list(self._to_draft)] = list(self._to_draft.values())
        return Projection(to_target, theirs)


def _counted(**counts: int) -> Mapping[str, int]:
    """Only what has happened is named."""
    return {name: count for name, count in counts.items() if count}


def _spellings(
    target: Tokenizer[TargetId], draft: Tokenizer[DraftId]
) -> list[tuple[TargetId, str]]:
    """Special tokens that the draft lacks: it reads their spelling as text."""
    own = map_specials(target, draft)
    return [(TargetId(i), s) for i, s in target.vocabulary.specials.items() if i not in own]


class Naive:
    """`naive`: `encode(decode(draft ids))`, each chunk an isolated string to both tokenizers.

    Source: Transformers' universal assisted decoding without its context window. A target with a
    dummy prefix puts a space before every chunk, so that next to nothing is accepted.
    """

    def __init__(self, pair: Pair, text: DraftText) -> None:
        self._pair, self._text = pair, text

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        self._text.follow(context.ids)
        drafting = session.draft(self._text.ids, steps)

        def translated() -> Translated:
            drafted, end = self._pair.split_end(drafting())
            ids = self._pair.target.encode(self._pair.draft.decode(drafted)) if drafted else []
            return Translated((*ids, *end))

        return translated


class ContextWindow:
    """`context:P`: encode the last P target tokens' text and the draft's, cut off the former's ids.

    Source: the MLX-LM fork of the Polish study. Its slice loses what the boundary absorbs; unlike
    it, text is taken as bytes here, so no leading space and no half character is lost.
    """

    def __init__(self, pair: Pair, text: DraftText, window: int) -> None:
        self._pair, self._text, self._window = pair, text, window

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        self._text.follow(context.ids)
        drafting, prefix = session.draft(self._text.ids, steps), self._prefix(context)

        def translated() -> Translated:
            drafted, end = self._pair.split_end(drafting())
            whole = self._encode(prefix + self._pair.draft.vocabulary.bytes_of(drafted))
            return Translated((*whole[len(self._encode(prefix)) :], *end))

        return translated

    def _prefix(self, context: Context) -> bytes:
        """Bytes of the window's tokens behind the last special one."""
        tokens = self._pair.target.vocabulary.tokens
        window = reversed(context.ids[-self._window :]) if self._window else iter(())
        spelled = list(takewhile(bool, (token_bytes(tokens, i) for i in window)))
        return b"".join(reversed(spelled))

    def _encode(self, data: bytes) -> list[TargetId]:
        """As an isolated string: decoding drops one leading space, encoding puts one in front."""
        if self._pair.target.spec.dummy_prefix and data:
            data = b" " + data.removeprefix(b" ")
        return [TargetId(i) for i in self._pair.target.bpe.encode(data)]


class TokenIntersection:
    """`intersection`: one draft token is one target token, of the same bytes.

    The draft may only choose tokens that the target has too; special tokens are matched by role.
    guesser: as of `SharedIds`; a choice is made over target ids, by the law of the tokens shared.
    Source: token-level intersection (TLI) of "Accelerating LLM Inference with Lossless Speculative
    Decoding Algorithms for Heterogeneous Vocabularies" (Timor et al., 2025), on a byte-exact map.
    """

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        intersection: Intersection,
        guesser: Guesser | None = None,
    ) -> None:
        self._text, self._guesser = text, guesser
        roles = match_roles(pair.draft.vocabulary.roles, pair.target.vocabulary.roles)
        to_target = intersection.draft_to_target.copy()
        for draft_id, target_id in roles.items():
            to_target[draft_id] = target_id
        self._to_target = to_target
        self._to_draft = intersection.target_to_draft
        self._mask = None

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        self._text.follow(context.ids)
        if self._guesser is not None:
            return Translated.of(
                draw(
                    session,
                    self._text.ids,
                    steps,
                    guesser=self._guesser,
                    behind=context.ids,
                    onto=self._onto,
                )
            )
        if self._mask is None:
            self._mask = session.mask(self._to_target >= 0)
        barred, drafting = session.barred, session.draft(self._text.ids, steps, self._mask)

        def translated() -> Translated:
            ids = self._to_target[np.array(drafting(), dtype=int)].tolist()
            unmapped = session.barred - barred
            return Translated(tuple(map(TargetId, ids)), _counted(unmapped=unmapped))

        return translated

    @cached_property
    def _onto(self) -> Projection:
        return Projection(self._to_target, self._to_draft)
