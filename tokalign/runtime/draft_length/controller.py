"""The draft length controller: drafter and verifier of one request, deciding for both.

As a drafter it asks the sources and carries out what `decision.decide` chooses. As a verifier it
watches the clock and the verdict, and passes both on to what learns from them (`knowledge.py`).
Three rules keep it from costing more than it brings:

* Where nothing is expected to pay, it runs ahead (`Proposal.run_ahead`), as plain decoding does.
  Free sources are still asked now and then, while the device is busy. Once their offers are worth
  more than the overlap of host and device, it stops running ahead.
* A draft model that does not pay is tried again after 16 rounds, then 32, 64, ..., and at once if
  that paid; one that would not pay even if it were nearly always right, after 1024.
* What drafting loses against plain decoding is bounded, whatever was expected (`DraftBudget`). The
  round in which a draft model reads the prompt is not held against it.

Equal clocks and equal verdicts give equal decisions: nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol, TypeAlias

from tokalign.cost.expected_gain import best_ids
from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.decision import MAX_DRAFT, MAX_IDS, Decision, Situation, decide
from tokalign.runtime.draft_length.free_offers import FreeOffers
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.overrides import PlainTiming
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_NOTHING, _RUN_AHEAD = Proposal(), Proposal(run_ahead=True)


class SteppedDrafter(Protocol):
    """A draft model: every step is a pass that costs time, so it is told how many to take."""

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """A proposal of at most `limit` ids from at most `steps` (1 or more) passes."""
        ...

    def observe(self, one: Round) -> None:
        """See `interfaces.Drafter`."""
        ...


Join: TypeAlias = Callable[[TokenTree[TargetId], int, float], TokenTree[TargetId]]
"""Given a draft model's tree, the most ids to propose and the time that drafting took, the best
proposal of that tree and what the free sources have offered for the same place."""


@dataclass(slots=True)
class _Drafting:
    """How the proposal of the present round came about.

    pass_under_way: the round before ran ahead. runs_ahead: so does this one. is_last: no id may be
    emitted after it, so that nothing can run ahead.
    passes: of the draft model, which proposed `tree`. seconds: spent on the proposal.
    """

    pass_under_way: bool = False
    runs_ahead: bool = False
    is_last: bool = False
    passes: int = 0
    tree: TokenTree[TargetId] = EMPTY_TREE
    seconds: float = 0.0


class DraftLengthController(Drafter):
    """Drafter and verifier of one request.

    free: proposes chains by looking up, in microseconds. model: drafts in passes. At least one is
    given.
    join: merges the model's tree with what `free` has just offered, see `Hybrid.join`.
    clock: in seconds. A round lasts from verdict to verdict, because the pass of a round that runs
    ahead may begin before the round does.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        verifier: Verifier,
        *,
        free: Drafter | None = None,
        model: SteppedDrafter | None = None,
        join: Join | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._knowledge, self._verifier, self._clock = knowledge, verifier, clock
        self._model, self._join = model, join
        self._offers = FreeOffers(free, knowledge, clock)
        self._plain_timing = PlainTiming(knowledge.costs)
        self._drafting = _Drafting()
        self._last_verdict: float | None = None
        self._model_has_read = False
        """Whether the draft model has read the prompt, so that its drafts may be timed."""
        self._had_proposal = False
        """Whether the round before had one: it may have left rows to be read again."""

    # -- as a drafter ------------------------------------------------------------------------------

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        began = self._clock()
        knowledge, under_way = self._knowledge, self._drafting.runs_ahead
        self._drafting = _Drafting(under_way, is_last=not limit)
        if self._last_verdict is None:
            knowledge.budget.begin(limit + 1)
        knowledge.model_trials.count_round()
        self._offers.learn_from_unused(context)
        proposal = _NOTHING
        if limit:
            most = min(limit, MAX_IDS, knowledge.costs.rows.reach - 1)
            proposal = self._carry_out(decide(self._situation(context, most)), context, most)
        self._drafting.runs_ahead = proposal.run_ahead
        self._drafting.seconds = self._clock() - began
        return proposal

    def _situation(self, context: Context, limit: int) -> Situation:
        knowledge, under_way = self._knowledge, self._drafting.pass_under_way
        offer = self._offers.ask(context, limit, seldom=under_way)
        model, trial_is_due = None, False
        if self._model is not None:
            model = knowledge.model.best(knowledge.costs, min(limit, MAX_DRAFT))
            # In the round that reads the prompt the draft model would have to read it too.
            not_first = self._last_verdict is not None
            trial_is_due = not_first and knowledge.trial_is_due(model)
        if not under_way:
            self._plain_timing.refresh()
        promised = knowledge.costs.plain * max(offer.rate, model.rate if model else 0.0)
        return Situation(
            limit=limit,
            plain=knowledge.costs.plain,
            offer=offer,
            pass_under_way=under_way,
            budget_is_spent=knowledge.budget.forbids(promised),
            plain_rounds_due=self._plain_timing.rounds_due,
            offers_pay=self._offers.pay,
            model=model,
            trial_is_due=trial_is_due,
            long_draft_is_due=knowledge.long_drafts.is_due,
        )

    def _carry_out(self, decision: Decision, context: Context, limit: int) -> Proposal:
        knowledge = self._knowledge
        if decision.passes and self._model is not None:
            knowledge.model_trials.tried(pays=not decision.is_trial)
            knowledge.long_drafts.count_draft()
            passes = min(decision.passes, MAX_DRAFT)
            return self._draft(self._model, context, passes, limit)
        if decision.offered:
            knowledge.long_drafts.count_draft()
            offer = self._offers.most_probable(context, decision.offered)
            return replace(offer, run_ahead=False)
        self._plain_timing.count_plain()
        return _RUN_AHEAD if decision.run_ahead else _NOTHING

    def _draft(self, model: SteppedDrafter, context: Context, passes: int, limit: int) -> Proposal:
        began = self._clock()
        proposal = model.draft(context, steps=passes, limit=limit)
        took = self._clock() - began
        if not proposal.draft_passes:  # a recurrent drafter before the target's first pass
            return proposal
        if self._model_has_read:
            self._knowledge.costs.observe_draft(passes, took)
        self._drafting.passes, self._drafting.tree = passes, proposal.tree
        tree = self._joined(proposal.tree, context, limit, took)
        if tree and not tree.probabilities:
            return proposal  # a drawn chain has no probabilities to cut it by
        return replace(proposal, tree=self._worth_verifying(tree, limit, took))

    def _joined(
        self, tree: TokenTree[TargetId], context: Context, limit: int, spent: float
    ) -> TokenTree[TargetId]:
        """The model's tree, merged with the free sources' offer if there is one for this place."""
        if self._join is None or not tree or not self._offers.at(context).tree:
            return tree
        if not tree.probabilities:
            chain = tree.first_chain
            acceptance = self._knowledge.model.acceptance
            tree = chain.with_probabilities(acceptance.probabilities(len(chain)))
        return self._join(tree, limit, spent)

    def _worth_verifying(
        self, tree: TokenTree[TargetId], most: int, spent: float
    ) -> TokenTree[TargetId]:
        """The part of a tree with the best expected rate, of at most `most` ids."""
        tree = tree.most_probable(most, least=0.0, depth=most)
        probabilities = self._knowledge.trust.probabilities(tree)
        costs = self._knowledge.costs.verification(len(tree))
        return tree.select(best_ids(probabilities, tree.parents, costs, spent=spent))

    # -- as a verifier -----------------------------------------------------------------------------

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        verdict = self._verifier.verify(context, proposal)
        now = self._clock()
        if self._last_verdict is not None:
            self._time(proposal, verdict, now - self._last_verdict)
            if self._had_proposal:
                again = verdict.rows - 1 - len(proposal.tree)
                self._knowledge.costs.observe_rereading(max(0, again))
        self._last_verdict, self._had_proposal = now, bool(proposal.tree)
        self._learn(proposal, verdict)
        return verdict

    def _time(self, proposal: Proposal, verdict: Verdict, seconds: float) -> None:
        """Learn from the time between two verdicts."""
        costs, drafting = self._knowledge.costs, self._drafting
        if drafting.passes and not self._model_has_read:
            self._model_has_read = True
            return
        expected, is_timed = costs.plain, True
        # Where running ahead begins or ends, a pass lies partly in another round: learn nothing.
        if proposal.tree or not (drafting.pass_under_way or drafting.runs_ahead):
            expected = costs.rows(verdict.rows) + drafting.seconds
            costs.observe_round(verdict.rows, max(seconds - drafting.seconds, 1e-9))
        elif drafting.pass_under_way and drafting.runs_ahead:
            costs.observe_plain(seconds)
        else:
            is_timed = False
        costs.count_round(without_draft=is_timed and not proposal.tree)
        if drafting.pass_under_way and (drafting.runs_ahead or drafting.is_last):
            seconds = costs.plain * len(verdict.ids)  # drafting had no part in it
        elif is_timed and not proposal.tree:
            # What waiting for a draft costs in the mean: this round may have been slow by itself.
            seconds = costs.rows(1) + drafting.seconds
        self._knowledge.budget.account(
            seconds,
            len(verdict.ids),
            expected=expected,
            plain=costs.plain,
            drafted=bool(proposal.tree),
        )

    def observe(self, one: Round) -> None:
        """See `interfaces.Drafter`."""
        self._offers.observe(one)
        if self._model is not None:
            self._model.observe(one)

    def _learn(self, proposal: Proposal, verdict: Verdict) -> None:
        """Learn from what was right: of a draft model by depth, of every source by probability."""
        knowledge, passes, tree = self._knowledge, self._drafting.passes, proposal.tree
        if passes:
            accepted = verdict.ids[:-1]
            right = len(self._drafting.tree.path_of(accepted))
            added = len(accepted) - right
            knowledge.model.learn(
                passes, right, known=len(verdict.ids), rows=len(tree), added=added
            )
            # By what such a round takes: this one may have included reading the prompt.
            costs = knowledge.costs
            took = costs.draft_times(passes)[-1] + costs.rows(verdict.rows)
            if took < costs.plain * len(verdict.ids):
                knowledge.model_trials.paid()
        elif tree:
            self._offers.forget()
        if tree and (tree.probabilities or not passes):
            knowledge.trust.learn(tree, verdict.ids)
