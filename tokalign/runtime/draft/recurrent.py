"""Drafting with a recurrent drafter: a beam search whose most probable ids become a tree of
guesses.

The search looks at more continuations than are worth verifying, because listing them costs nothing
on top of a step. The expected gain decides which of them become rows, as for every source. A beam
of fixed shape, as published, is there for experiments.
Where the target samples, the search predicts its choices, because the drafter shares its noise.
With logits processors, which need the history of every row, a chain is drawn instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from tokalign.cost.expected_gain import Costs, best_ids
from tokalign.runtime.context import Context
from tokalign.runtime.draft.beams import BeamShape
from tokalign.runtime.draft.cost_aware import ModelDrafter
from tokalign.runtime.interfaces import BeamSession, DraftSampler
from tokalign.runtime.proposal import Proposal
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "drafter"

DEFAULT_SHAPE = BeamShape(width=4, length=4)
"""Beams that are searched where the rows are chosen by their gain."""

_LISTED = 8
"""Ids listed after every beam."""

_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""


class BeamDrafter(ModelDrafter):
    """A recurrent drafter as a drafter of one request, alone or as the model of a hybrid.

    session: of the drafter. sampler: how the target's choices are predicted or drawn; None if it
    decodes greedily. length: steps of a search where the caller does not choose their number.
    width: beams of a search, unless `beam` says.
    beam: propose this beam whole, however unlikely; None lets costs choose the rows.
    rows: propose so many ids, whatever they cost. branches: whether a proposal may be a tree.
    """

    def __init__(
        self,
        session: BeamSession,
        *,
        sampler: DraftSampler | None = None,
        length: int = DEFAULT_SHAPE.length,
        width: int = DEFAULT_SHAPE.width,
        beam: BeamShape | None = None,
        rows: int | None = None,
        costs: Callable[[], Costs],
        branches: bool = True,
    ) -> None:
        self._session, self._sampler = session, sampler
        self._beam, self._rows, self._costs = beam, rows, costs
        self._length = length if beam is None else beam.length
        self._width = 1 if not branches else width if beam is None else beam.width
        self._branches = branches
        self._draws = sampler is not None and sampler.needs_history

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        proposal = self.answer(context, limit)
        tree = proposal.tree
        if not tree.probabilities or self._beam is not None:
            return proposal
        if self._rows is not None:
            return replace(proposal, tree=tree.most_probable(self._rows, least=0.0, depth=limit))
        costs = self._costs()
        spent = proposal.draft_passes * costs.draft_pass
        kept = best_ids(tree.probabilities, tree.parents, costs, spent=spent)
        return replace(proposal, tree=tree.select(kept))

    def answer(self, context: Context, limit: int) -> Proposal:
        """See `cost_aware.Answering`."""
        return self.draft(context, steps=self._length, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """All that a search of at most `steps` steps has found; ids at most `limit` deep.

        Somebody else chooses the rows. Drawn ids have no probabilities. Nothing is found in the
        first round, before the target's first pass.
        """
        steps = min(steps, limit)
        if not steps:
            return Proposal()
        passes, seconds, began = self._session.passes, self._session.seconds, perf_counter()
        tree = self._drawn(context, steps) if self._draws else self._searched(context, steps)
        took, in_model = perf_counter() - began, self._session.seconds - seconds
        return Proposal(
            tree=tree,
            draft_passes=self._session.passes - passes,
            model_seconds=in_model,
            translation_seconds=max(0.0, took - in_model),
        )

    def _searched(self, context: Context, steps: int) -> TokenTree[TargetId]:
        shape = BeamShape(self._width, steps)
        count = _LISTED if self._branches and self._beam is None else self._width
        beams = self._session.search(context.ids, shape, count=count, sampler=self._sampler).read()
        if beams is None:
            return EMPTY_TREE
        if self._beam is not None:
            return beams.beam_tree(SOURCE)
        tree = beams.tree(SOURCE)
        return tree.most_probable(len(tree), least=_LEAST_REACHED, depth=steps)

    def _drawn(self, context: Context, steps: int) -> TokenTree[TargetId]:
        assert self._sampler is not None
        if self._rows is not None and self._beam is None:
            steps = min(steps, self._rows)
        drawn = self._session.draw(context.ids, steps, sampler=self._sampler).read()
        return EMPTY_TREE if drawn is None else TokenTree.chain(drawn, SOURCE)
