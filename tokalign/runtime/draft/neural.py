"""Drafting with a model, of the target's tokenizer or another one."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.estimates import Acceptance
from tokalign.runtime.interfaces import Session
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.translation.published import Translated, Translation
from tokalign.tokenizer.vocabulary import TargetId

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
        self._acceptance = Acceptance()
        self._guessed: tuple[int, tuple[TargetId, ...]] = 0, ()

    def propose(self, context: Context, limit: int) -> Proposal:
        return self.draft(context, steps=self._steps, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """A proposal of at most `limit` ids from at most `steps` passes."""
        steps = min(steps, limit)
        if not steps:
            return Proposal()
        passes, seconds, began = self._session.passes, self._session.seconds, perf_counter()
        waiting = self._translation.draft(context, self._session, steps)
        self._learn(context)  # while the passes are under way
        believed = self._acceptance.probabilities(2 * steps)
        translated = waiting()
        took, in_model = perf_counter() - began, self._session.seconds - seconds
        chain = translated.ids[:limit]
        self._guessed = len(context.ids), chain
        ids, parents = chain, tuple(range(-1, len(chain) - 1))
        probabilities = self._probabilities(translated, len(chain), believed)
        for token, probability in translated.beside[: self._alternatives]:
            ids += (token,)
            parents += (-1,)
            if not translated.laws:
                probabilities += (probability,)
        return Proposal(
            ids=ids,
            sources=(SOURCE,) * len(ids),
            probabilities=probabilities,
            parents=parents if len(ids) > len(chain) else (),
            laws=translated.laws[: len(chain)],
            draft_passes=self._session.passes - passes,
            counts=translated.counts,
            model_seconds=in_model,
            translation_seconds=max(0.0, took - in_model),
        )

    def _learn(self, context: Context) -> None:
        """What became of the last chain."""
        start, chain = self._guessed
        came = context.ids[start : start + len(chain)]
        right = [guessed == token for guessed, token in zip(chain, came, strict=False)]
        self._acceptance.observe(len(right), [*right, False].index(False))
        self._guessed = 0, ()

    def _probabilities(
        self, translated: Translated, length: int, believed: Sequence[float]
    ) -> tuple[float, ...]:
        """Of a chain, as the translation knows them; of its rest, as its positions turned out.

        believed: the latter, as far as known. None where ids were drawn: choosing among them by it
        would bend the law (`rejection.py`).
        """
        if translated.laws:
            return ()
        if length > len(believed):
            believed = self._acceptance.probabilities(length)
        said = translated.probabilities[:length]
        return said + tuple(believed[len(said) : length])
