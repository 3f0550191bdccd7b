"""The gain controller: how many ids to draft in each round, none included.

A round with n ids is expected to emit 1 + sum of P_i tokens and costs drafting plus C(n + 1); the
length with the best rate is taken (`plan.best_length`). Both sides are learned while decoding
(`pace.py`), so an assumed cost curve is soon a measured one.

It stands around both collaborators of the loop: as a drafter it decides, as a verifier it watches
the clock and the verdict. Three rules keep it from costing more than it brings:

* Where nothing is expected to pay it runs ahead (`Proposal.run_ahead`), which is what plain
  decoding does. Free sources are asked meanwhile, while the device is busy; once their offers are
  worth more than the overlap of host and device, running ahead ends.
* A draft model that does not pay is tried again after 16 rounds, then 32, 64, ...; one that
  would not pay if it were nearly always right after 1024.
* What drafting loses against plain decoding is bounded, whatever was expected (`Pace.rests`).

Equal clocks and equal verdicts give equal decisions: nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from tokalign.cost.expected_gain import Plan, best_ids
from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.pace import Pace, plan_offer
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tables.token_tree import TokenTree

MOST = 16
"""Ids that are drafted at most in a round."""

_PLAIN_ROUNDS = 3
"""So many plain rounds in a row tell what plain decoding costs (`Pace.timed_again_after`)."""

_ASKING_SHARE = 0.01
"""Running ahead, sources are asked so often that it takes at most this share of the time."""


class SteppedDrafter(Protocol):
    """A draft model: every step is a pass that costs time, so it is told how many to take."""

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """A proposal of at most `limit` ids from at most `steps` (1 or more) passes."""
        ...


class Join(Protocol):
    """Merges a guess with what the free sources have offered for the same place."""

    def __call__(self, answer: TokenTree, limit: int, *, spent: float) -> TokenTree: ...


class GainController:
    """Drafter and verifier of one request, deciding for both.

    free: drafts by looking up, in microseconds. model: drafts in passes. At least one is given.
    join: merges the model's chain with what `free` has just offered, see `Hybrid.join`.
    clock: in seconds. A round lasts from verdict to verdict, whoever spends the time, for running
    ahead a pass may begin rounds before its own.
    """

    def __init__(
        self,
        pace: Pace,
        verifier: Verifier,
        *,
        free: Drafter | None = None,
        model: SteppedDrafter | None = None,
        join: Join | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._pace, self._verifier, self._clock = pace, verifier, clock
        self._free, self._model, self._join = free, model, join
        self._last_verdict: float | None = None
        self._was_ahead = self._ahead = False
        self._plain_rounds = 0 if pace.knows_plain else _PLAIN_ROUNDS  # that are to come
        self._since_plain = 0
        self._drafting = 0.0
        self._steps = 0  # of the model in this round
        self._drafted = Proposal()  # by the model
        self._model_started = False
        self._ask_in = 0
        self._offer: tuple[int, Proposal] | None = None  # of the free sources, where it stands

    # -- as a drafter ------------------------------------------------------------------------------

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        began = self._clock()
        self._was_ahead, self._steps = self._ahead, 0
        if self._last_verdict is None:
            self._pace.begin(limit + 1)
        self._pace.a_round_less()
        self._check_offer(context)
        most = min(limit, MOST, self._pace.rows.reach - 1)
        proposal = self._choose(context, most) if limit else Proposal()
        self._ahead = proposal.run_ahead
        self._drafting = self._clock() - began
        return proposal

    def _choose(self, context: Context, limit: int) -> Proposal:
        plan = self._ask(context, limit)
        if self._was_ahead or self._must_be_plain():
            return self._plain()
        if self._model is not None:
            best = self._pace.best_steps(limit)
            pays = best.rate * self._pace.plain > 1.0
            if (pays and best.rate > plan.rate) or (not pays and self._may_try()):
                self._pace.tried(pays=pays)
                steps = min(limit, self._explored(best.length))
                return self._draft(self._model, context, steps, limit)
        if plan.length and self._offer is not None:
            length = min(limit, self._explored(plan.length))
            offer = self._offer[1]
            return replace(offer, tree=offer.tree.head(length), run_ahead=False)
        return self._plain()

    def _must_be_plain(self) -> bool:
        if self._since_plain >= self._pace.timed_again_after:
            self._plain_rounds = _PLAIN_ROUNDS
        return self._pace.rests or self._plain_rounds > 0

    def _may_try(self) -> bool:
        """Not in the round that reads the prompt: the draft model would have to read it too."""
        return self._last_verdict is not None and self._pace.is_due(MOST)

    def _explored(self, length: int) -> int:
        return 2 * length + 1 if self._pace.explores() else length

    def _plain(self) -> Proposal:
        """Nothing this round; nothing next round either, unless waiting for it may be worth it."""
        self._plain_rounds = max(0, self._plain_rounds - 1)
        return Proposal(run_ahead=not self._waits())

    def _waits(self) -> bool:
        pace = self._pace
        if pace.rests or self._plain_rounds > 0:
            return False
        if self._free is not None and pace.worth > 0:
            return True
        return self._model is not None and (
            self._may_try() or pace.best_steps(MOST).rate * pace.plain > 1.0
        )

    def _ask(self, context: Context, limit: int) -> Plan:
        """What the free sources offer, and how much of it is worth verifying."""
        nothing = Plan(0, 1.0 / self._pace.rows(1))
        self._ask_in -= 1
        if self._free is None or (self._was_ahead and self._ask_in > 0):
            return nothing
        pace, began = self._pace, self._clock()
        offer = self._free.propose(context, limit)
        plan = plan_offer(pace, offer.tree) if offer.tree else nothing
        pace.value(plan)
        if offer.tree:
            self._offer = len(context.ids), offer
        pace.asking += (self._clock() - began - pace.asking) / 8
        self._ask_in = round(pace.asking / (_ASKING_SHARE * pace.plain))
        return plan

    def _draft(self, model: SteppedDrafter, context: Context, steps: int, limit: int) -> Proposal:
        pace, began = self._pace, self._clock()
        proposal = model.draft(context, steps=steps, limit=limit)
        took = self._clock() - began
        if self._model_started and pace.drafts is not None:  # the first draft reads the prompt
            pace.drafts.observe(steps, took)
        self._steps, self._drafted = steps, proposal
        tree = proposal.tree
        if self._join is not None and self._offers_now(context) and tree:
            if not tree.probabilities:
                chain = tree.first_chain
                tree = chain.with_probabilities(pace.acceptance.probabilities(len(chain)))
            tree = self._join(tree, limit, spent=took)
        if not tree.probabilities:
            return proposal
        return replace(proposal, tree=self._worth(tree, took), distributions=())

    def _worth(self, tree: TokenTree, spent: float) -> TokenTree:
        """The part of a tree with the best expected rate."""
        pace = self._pace
        costs = pace.costs(len(tree))
        return tree.select(best_ids(pace.believed(tree), tree.parents, costs, spent=spent))

    def _offers_now(self, context: Context) -> bool:
        return self._offer is not None and self._offer[0] == len(context.ids)

    # -- as a verifier -----------------------------------------------------------------------------

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        verdict = self._verifier.verify(context, proposal)
        now = self._clock()
        if self._last_verdict is not None:
            self._time(proposal, verdict, now - self._last_verdict)
        self._last_verdict = now
        self._learn(proposal, verdict)
        return verdict

    def _time(self, proposal: Proposal, verdict: Verdict, seconds: float) -> None:
        pace = self._pace
        if self._steps and not self._model_started:
            self._model_started = True
            return
        self._since_plain += 1
        expected = pace.plain
        if proposal.tree or not (self._was_ahead or self._ahead):
            expected = pace.rows(verdict.rows) + self._drafting
            pace.rows.observe(verdict.rows, max(seconds - self._drafting, 1e-9))
        elif self._was_ahead and self._ahead:
            pace.timed_plain(seconds)
            self._since_plain = 0
        pace.account(seconds, len(verdict.ids), expected=expected)

    def _learn(self, proposal: Proposal, verdict: Verdict) -> None:
        """From what was verified: of the draft model by depth, of all by what they said."""
        if self._steps:
            right = len(self._drafted.tree.path_of(verdict.ids))
            self._pace.drafted(self._steps, right, known=len(verdict.ids), rows=len(proposal.tree))
        elif proposal.tree:
            self._offer = None
        if proposal.tree and (proposal.tree.probabilities or not self._steps):
            self._pace.learn(proposal.tree, verdict.ids)

    def _check_offer(self, context: Context) -> None:
        """What became of an offer that was not verified: what it said of the next id, for free."""
        if self._offer is not None and self._offer[0] < len(context.ids):
            place, offer = self._offer
            self._pace.learn(offer.tree, context.ids[place : place + 1])
            self._offer = None
