"""Drafting with a model, whether it has the target's tokenizer or another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.acceptance import Acceptance
from tokalign.runtime.interfaces import DraftSession
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.translation.base import Translated, Translation
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "draft"

_LEAST_REACHED = 0.07
"""Divided by the passes, the least probability of being reached for the ids of a tree that nobody
else chooses from: with more passes a round costs more, so that a row more is a smaller part of it.
"""


class NeuralDrafter:
    """A draft model guesses `num_draft_tokens` tokens; a translation turns them into target ids.

    alternatives: how many ids a tree may have besides one for each pass; 0 for a target that cannot
    verify a tree. A translation that drafts a chain may know other ids in the place of the first
    one, and at most so many of these are proposed.
    """

    def __init__(
        self,
        session: DraftSession,
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
        """See `interfaces.Drafter`. Of a tree, only ids that are likely enough."""
        proposal, kept = self._draft(context, self._steps, limit)
        if kept >= len(proposal.tree):
            return proposal
        steps = min(self._steps, limit)
        most, least = steps + self._alternatives, _LEAST_REACHED / steps
        tree = proposal.tree.likeliest(most, least=least, depth=limit, chain=kept)
        return replace(proposal, tree=tree)

    def answer(self, context: Context, limit: int) -> Proposal:
        """See `cost_aware.Answering`."""
        return self.draft(context, steps=self._steps, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """All that at most `steps` passes have found; ids at most `limit` deep.

        Somebody else chooses the rows.
        """
        proposal, _ = self._draft(context, steps, limit)
        return proposal

    def _draft(self, context: Context, steps: int, limit: int) -> tuple[Proposal, int]:
        """What `draft` returns, and how many leading ids are proposed however unlikely they are."""
        steps = min(steps, limit)
        if not steps:
            return Proposal(), 0
        passes, seconds, began = self._session.passes, self._session.seconds, perf_counter()
        pending = self._translation.begin(
            context, self._session, steps, alternatives=self._alternatives
        )
        self._learn(context)  # while the passes are under way
        learned = self._acceptance.probabilities(2 * steps)
        translated = pending.finish()
        took, in_model = perf_counter() - began, self._session.seconds - seconds
        if not translated.tree:
            chain = translated.ids[:limit]
            tree = self._tree(translated, chain, learned)
            kept = len(tree)
        else:
            tree = translated.tree
            tree = tree.likeliest(len(tree), least=0.0, depth=limit)
            kept = steps if translated.keeps_chain else 0
        self._guessed = len(context.ids), tree.first_chain.ids
        proposal = Proposal(
            tree=tree,
            draft_passes=self._session.passes - passes,
            counts=translated.counts,
            model_seconds=in_model,
            translation_seconds=max(0.0, took - in_model),
        )
        return proposal, kept

    def _tree(
        self, translated: Translated, chain: tuple[TargetId, ...], learned: Sequence[float]
    ) -> TokenTree:
        """The chain, and the other first ids that the translation knows, as leaves."""
        others = translated.alternatives[: self._alternatives] if chain else ()
        probabilities = self._probabilities(translated, len(chain), learned)
        probabilities += tuple([probability for _, probability in others])
        count = len(chain) + len(others)
        return TokenTree(
            chain + tuple([token for token, _ in others]),
            (*range(-1, len(chain) - 1), *[-1] * len(others)),
            (SOURCE,) * count,
            probabilities,
        )

    def _learn(self, context: Context) -> None:
        """Compare the last chain with the ids that were emitted in its place."""
        start, chain = self._guessed
        emitted = context.ids[start : start + len(chain)]
        right = [guessed == token for guessed, token in zip(chain, emitted, strict=False)]
        self._acceptance.observe(len(right), [*right, False].index(False))
        self._guessed = 0, ()

    def _probabilities(
        self, translated: Translated, length: int, learned: Sequence[float]
    ) -> tuple[float, ...]:
        """Those that the translation knows, then how often the further positions were right.

        learned: the latter, for as many positions as are at hand.
        """
        if length > len(learned):
            learned = self._acceptance.probabilities(length)
        known = translated.probabilities[:length]
        return known + tuple(learned[len(known) : length])
