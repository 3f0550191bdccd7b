"""Drafting with a model, whether it has the target's tokenizer or another one."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from tokalign.runtime.context import Context
from tokalign.runtime.draft.cost_aware import ModelDrafter
from tokalign.runtime.draft_length.acceptance import Acceptance
from tokalign.runtime.interfaces import DraftSession
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round
from tokalign.runtime.translation.base import Translation
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_LEAST_REACHED = 0.07
"""Divided by the passes, the least probability of being reached for the ids of a tree that nobody
else chooses from: with more passes a round costs more, so that a row more is a smaller part of it.
"""


class NeuralDrafter(ModelDrafter):
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
        self._chain: TokenTree[TargetId] = EMPTY_TREE  # that was guessed in this round

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`. A tree keeps its chain and other ids that are probable enough.

        The chain is worth its rows wherever it leads: a target agrees with the draft's most
        probable id more often than the draft's probability says.
        """
        proposal = self.answer(context, limit)
        tree, chain = proposal.tree, proposal.tree.chain_length
        if chain == len(tree):
            return proposal
        steps = min(self._steps, limit)
        most, least = max(chain, steps + self._alternatives), _LEAST_REACHED / steps
        tree = tree.most_probable(most, least=least, depth=limit, chain=chain)
        return replace(proposal, tree=tree)

    def answer(self, context: Context, limit: int) -> Proposal:
        """See `cost_aware.Answering`."""
        return self.draft(context, steps=self._steps, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """All that at most `steps` passes have found; ids at most `limit` deep.

        Somebody else chooses the rows.
        """
        steps = min(steps, limit)
        if not steps:
            return Proposal()
        passes, seconds, began = self._session.passes, self._session.seconds, perf_counter()
        tree, counts = self._translation.draft(
            context,
            self._session,
            steps,
            alternatives=self._alternatives,
            learned=self._acceptance.probabilities,
        )
        tree = tree.most_probable(len(tree), least=0.0, depth=limit)
        took, in_model = perf_counter() - began, self._session.seconds - seconds
        self._chain = tree.first_chain
        return Proposal(
            tree=tree,
            draft_passes=self._session.passes - passes,
            counts=counts,
            model_seconds=in_model,
            translation_seconds=max(0.0, took - in_model),
        )

    def observe(self, one: Round) -> None:
        """See `interfaces.Drafter`. Learn how far the drafted chain was right."""
        chain, self._chain = self._chain, EMPTY_TREE
        if chain:
            right = len(chain.path_of(one.emitted))
            self._acceptance.observe(min(len(chain), len(one.emitted)), right)
