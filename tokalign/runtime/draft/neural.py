"""Drafting with a model, of the target's tokenizer or another one."""

from __future__ import annotations

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Session
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.translate import Translation

SOURCE = "draft"


class NeuralDrafter:
    """A draft model guesses `num_draft_tokens` tokens; a translation puts them in target ids.

    alternatives: how many ids at most are proposed beside the first one, where the translation
    knows any; 0 for a target that cannot verify a tree.
    """

    def __init__(
        self,
        session: Session,
        translation: Translation,
        *,
        num_draft_tokens: int = 3,
        alternatives: int = DEFAULT_ALTERNATIVES,
    ) -> None:
        self._session = session
        self._translation = translation
        self._steps = num_draft_tokens
        self._alternatives = alternatives

    def propose(self, context: Context, limit: int) -> Proposal:
        return self.draft(context, steps=self._steps, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """A proposal of at most `limit` ids from at most `steps` passes."""
        steps = min(steps, limit)
        if not steps:
            return Proposal()
        passes, seconds = self._session.passes, self._session.seconds
        translated = self._translation.draft(context, self._session, steps)
        chain, beside = translated.ids[:limit], translated.beside[: self._alternatives]
        ids = (*chain, *(token for token, _ in beside))
        return Proposal(
            ids=ids,
            sources=(SOURCE,) * len(ids),
            probabilities=translated.probabilities,
            parents=(*range(-1, len(chain) - 1), *[-1] * len(beside)) if beside else (),
            laws=translated.laws[: len(chain)],
            draft_passes=self._session.passes - passes,
            counts=translated.counts,
            model_seconds=self._session.seconds - seconds,
        )
