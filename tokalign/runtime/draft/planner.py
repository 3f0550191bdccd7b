"""The planner: in every round it drafts what should give the most tokens per time.

It is the drafter of one request. The free sources (`draft/hybrid.py`) grow the tree with the best
expected rate; for a draft model the number of passes with the best expected rate is known from what
it brought before (`ModelWorth`). Of these two and plain decoding the best rate wins. A draft
model's tree is joined with what the free sources expect, if these offer anything. Three rules keep
drafting from costing more than it brings:

* Where nothing is expected to pay, it runs ahead (`Proposal.run_ahead`), as plain decoding does.
  Free sources are still asked now and then, while the device is busy. Once their offers are worth
  more than the overlap of host and device, it stops running ahead.
* What is not expected to pay is tried again after waits that double (`Trials`): only drafts tell
  what drafts cost and bring, and only plain rounds what plain decoding takes.
* What drafting loses against plain decoding is bounded, whatever was expected (`Allowance`). The
  round in which a draft model reads the prompt is not held against it.

Times are those that the loop has measured around drafting and verification (`Round`). What happens
between two rounds is no part of them. But a plain pass that runs ahead may be computed meanwhile,
so that nobody waits for it: then it saves less to draft, by the time that is hidden.
Equal clocks and equal rounds give equal decisions: nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft.knowledge import MAX_DRAFT, MAX_IDS, Course, Knowledge
from tokalign.runtime.draft.learned_costs import Plan, is_long
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_NOTHING, _RUN_AHEAD = Proposal(), Proposal(run_ahead=True)
_PARKED = Proposal(run_ahead=True, parked=True)

_FIRST_PLAIN = 3
"""Consecutive plain rounds of the first timing: only those that begin and end ahead are timed."""

_AFTER_PAUSES = _FIRST_PLAIN + 1
"""The same after pauses. The first of them does not run ahead, so that a whole pass is timed; the
others show what pauses hide of a pass."""

_HIDING_MEMORY = 8
"""Plain rounds that the mean of what pauses hide looks back on."""


@dataclass(slots=True)
class _Drafting:
    """How the proposal of the present round came about.

    pass_under_way: the round before ran ahead. is_last: no id may be emitted after it, so that
    nothing can run ahead. goes_on: it follows the round before; another one may read a prompt, or
    what others have decoded. passes: of the draft model, which found `tree`. seconds: of drafting.
    waited: before that, for passes of other requests.
    """

    pass_under_way: bool = False
    is_last: bool = False
    goes_on: bool = False
    passes: int = 0
    tree: TokenTree[TargetId] = EMPTY_TREE
    seconds: float = 0.0
    waited: float = 0.0


class Planner(Drafter):
    """The drafter of one request.

    free: sources that only look up, in microseconds. model: drafts in passes; None without one.
    steps: so many passes whenever the model drafts; None to choose their number.
    clock: that of the loop, in seconds; it times the parts of drafting. None where costs are given
    and nothing is timed.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        free: Hybrid,
        model: ModelDrafter | None = None,
        *,
        steps: int | None = None,
        clock: Callable[[], float] | None = perf_counter,
    ) -> None:
        self._knowledge, self._free, self._model, self._steps = knowledge, free, model, steps
        self._clock = clock or (lambda: 0.0)
        self._is_timed = clock is not None
        self._course: Course | None = None
        self._runs_ahead = False
        self._now = _Drafting()
        self._plain_due = _FIRST_PLAIN if self._is_timed and not knowledge.costs.plain_rounds else 0
        self._until_asked = 0
        self._length = -1  # how many ids there were after the round before
        self._busy = 0.0  # the seconds of all requests' rounds by then
        self._has_paused = self._has_begun = False
        self._model_has_read = not self._is_timed
        """Whether the draft model has read the prompt, so that its drafts may be timed."""
        self._had_proposal = False
        """Whether the round before had one: it may have left rows to be read again."""

    def propose(self, context: Context, limit: int) -> Proposal:
        began, knowledge, length = self._clock(), self._knowledge, len(context.ids)
        if self._course is None:
            self._course = knowledge.begin(limit + 1)
        goes_on = length == self._length
        if not goes_on:
            self._model_has_read = not self._is_timed
        self._now = _Drafting(
            pass_under_way=self._runs_ahead and goes_on, is_last=not limit, goes_on=goes_on
        )
        self._length = length
        knowledge.model_trials.count()
        knowledge.plain_timings.count()
        proposal = _NOTHING
        if limit:
            most = limit if self._free.rows else min(limit, MAX_IDS)
            if self._is_timed:
                most = min(most, knowledge.costs.rows.reach - 1)
            proposal = self._plan(context, most)
        self._runs_ahead = proposal.run_ahead
        self._now.seconds = self._clock() - began - self._now.waited
        return proposal

    @property
    def course(self) -> Course:
        """What this request has learned; it begins with the first proposal."""
        assert self._course is not None, "no proposal was asked for"
        return self._course

    @property
    def _hidden(self) -> float:
        return min(self.course.hidden or 0.0, self._knowledge.costs.plain)

    # -- what to draft -----------------------------------------------------------------------------

    def _plan(self, context: Context, limit: int) -> Proposal:
        knowledge, under_way = self._knowledge, self._now.pass_under_way
        offer, plan = self._ask(context, limit)
        model, trial = self._model_plan(limit)
        paused, course = self._has_paused, self.course
        if not under_way and self._is_timed and knowledge.plain_timings.is_due:
            self._plain_due = max(_AFTER_PAUSES if paused else 1, self._plain_due)
        rate = 0.0 if model is None else model.rate
        plain = knowledge.costs.plain - self._hidden
        pays = rate * plain > 1.0
        rests = self._is_timed and course.allowance.forbids(plain * max(plan.rate, rate))
        if not (under_way or rests or self._plain_due):
            if model is not None and (trial or (pays and model.rate > plan.rate)):
                knowledge.model_trials.tried(pays=not trial)
                longer = knowledge.long_drafts.is_due and self._steps is None
                passes = 2 * model.length + 1 if longer else model.length
                return self._draft(context, min(passes, limit, MAX_DRAFT), limit, alone=not offer)
            if offer:
                knowledge.long_drafts.count_or_try()
                return Proposal(tree=offer)
        exactly = paused and self._plain_due >= _AFTER_PAUSES
        may_draft_next = not rests and self._plain_due <= 1
        self._plain_due = max(0, self._plain_due - 1)
        free_pays = self._free.can_offer and course.offers.pays
        if not self._is_timed or exactly or (may_draft_next and (pays or trial or free_pays)):
            return _NOTHING
        return _PARKED if course.parking.is_parked else _RUN_AHEAD

    def _model_plan(self, limit: int) -> tuple[Plan | None, bool]:
        """What a draft of the model is expected to give, and whether it is drafted all the same."""
        knowledge = self._knowledge
        # In the round that reads the prompt the draft model would have to read it too.
        if self._model is None or (self._is_timed and not self._has_begun):
            return None, False
        if self._free.rows is not None:
            return Plan(self._steps or 1, 0.0), True
        plan = knowledge.model.best(knowledge.costs, min(limit, MAX_DRAFT), steps=self._steps)
        return plan, self._is_timed and knowledge.trial_is_due(plan)

    def _ask(self, context: Context, limit: int) -> tuple[TokenTree[TargetId], Plan]:
        """The free sources' best tree, and its plan; asked seldom where it cannot be used."""
        knowledge, costs, course = self._knowledge, self._knowledge.costs, self.course
        nothing = EMPTY_TREE, Plan(0, 1.0 / costs.rows(1))
        self._until_asked -= 1
        if not self._free.can_offer or (self._now.pass_under_way and self._until_asked > 0):
            return nothing
        began, under_way = self._clock(), self._now.pass_under_way
        hopeful = self._is_timed and knowledge.long_drafts.is_due
        known = costs.verification(MAX_IDS, hopeful=hopeful)
        # Noise that was not made during a pass takes a CPU 30 ms for 152,000 ids.
        tree, plan = self._free.offer(context.ids, limit, known, quick=under_way)
        if self._is_timed:
            course.offers.learn(plan, plain=costs.plain, overlap=costs.overlap, hidden=self._hidden)
            if under_way:
                self._until_asked = course.offers.rounds_between(
                    self._clock() - began, plain=costs.plain, parked=course.parking.is_parked
                )
        return tree, plan

    def _draft(self, context: Context, passes: int, limit: int, *, alone: bool) -> Proposal:
        assert self._model is not None
        knowledge = self._knowledge
        self._now.waited = self._model.wait_for_others()
        began = self._clock()
        knowledge.long_drafts.count_or_try()
        proposal = self._model.draft(context, steps=passes, limit=limit)
        took = self._clock() - began
        if not proposal.draft_passes:  # a recurrent drafter before the target's first pass
            return proposal
        if not self._is_timed:
            took = knowledge.costs.draft_times(passes)[-1]
        elif self._model_has_read:
            knowledge.costs.observe_draft(passes, took)
        self._now.passes, self._now.tree = passes, proposal.tree
        costs = knowledge.costs.verification(MAX_IDS)
        tree, _ = self._free.offer(
            context.ids, limit, costs, answer=proposal.tree, spent=took, alone=alone
        )
        return replace(proposal, tree=tree)

    # -- what became of it -------------------------------------------------------------------------

    def observe(self, one: Round) -> None:
        self.course.parking.count(accepted=one.accepted)
        if self._is_timed:
            self._look_at_pause(one)
            if self._now.goes_on:
                self._time(one, self._own_seconds(one))
                if self._had_proposal:
                    again = one.rows - 1 - len(one.tree)
                    self._knowledge.costs.observe_rereading(max(0, again))
        self._has_begun, self._had_proposal = True, bool(one.tree)
        self._length += len(one.emitted)
        self._free.observe(one)
        if self._model is not None:
            self._model.observe(one)
        if self._now.passes:
            self._learn_of_model(one)

    def _look_at_pause(self, one: Round) -> None:
        """Whether there was a pause before the round, and what it hid of a plain pass.

        Rounds of other requests hide nothing: the device computes their passes meanwhile.
        """
        knowledge, course, drafting = self._knowledge, self.course, self._now
        others, knowledge.busy = knowledge.busy - self._busy, knowledge.busy + one.seconds
        self._busy = knowledge.busy
        if not drafting.goes_on:
            return
        seconds = self._own_seconds(one)
        used = max(0.0, one.pause - others)
        self._has_paused = is_long(one.pause, seconds)
        looks = course.hidden is None and is_long(used, seconds)
        if not self._plain_due and (looks or (self._has_paused and not knowledge.costs.is_timed)):
            self._plain_due = _AFTER_PAUSES + self._runs_ahead
        if drafting.pass_under_way and self._runs_ahead and knowledge.costs.is_timed:
            hidden = min(used, max(0.0, knowledge.costs.plain - seconds))
            before = hidden if course.hidden is None else course.hidden
            course.hidden = before + (hidden - before) / _HIDING_MEMORY

    def _own_seconds(self, one: Round) -> float:
        """What the round took without the passes of other requests that it waited for."""
        return one.seconds - one.waited - self._now.waited

    def _time(self, one: Round, seconds: float) -> None:
        """Learn from the time that a round took."""
        knowledge, costs, drafting = self._knowledge, self._knowledge.costs, self._now
        under_way, runs_ahead = drafting.pass_under_way, self._runs_ahead
        if drafting.passes and not self._model_has_read:
            self._model_has_read = True
            return
        expected, is_timed = costs.plain, True
        # Where running ahead begins or ends, a pass lies partly in another round: learn nothing.
        if one.tree or not (under_way or runs_ahead):
            expected = costs.rows(one.rows) + drafting.seconds
            costs.observe_round(one.rows, max(seconds - drafting.seconds, 1e-9))
        elif under_way and runs_ahead:
            costs.observe_plain(seconds, one.pause)
        else:
            is_timed = False
        costs.rows.count_round()
        if is_timed and not one.tree:
            knowledge.plain_timings.tried()
        hidden = self._hidden
        if under_way:  # drafting had no part in it
            least = costs.plain - hidden
            seconds = least if runs_ahead or drafting.is_last else max(seconds, least)
        elif is_timed and not one.tree:
            # What waiting for a draft costs in the mean: this round may have been slow by itself.
            seconds = costs.rows(1) + drafting.seconds
        self.course.allowance.account(
            seconds,
            len(one.emitted),
            expected=expected,
            plain=costs.plain,
            hidden=hidden,
            drafted=bool(one.tree),
        )

    def _learn_of_model(self, one: Round) -> None:
        knowledge, passes, costs = self._knowledge, self._now.passes, self._knowledge.costs
        accepted = one.emitted[:-1]
        right = len(self._now.tree.path_of(accepted))
        added = len(accepted) - right
        known = len(one.emitted)
        knowledge.model.learn(passes, right, known=known, rows=len(one.tree), added=added)
        # By what such a round takes: this one may have included reading the prompt.
        took = costs.draft_times(passes)[-1] + costs.rows(one.rows)
        if took < costs.plain * known:
            knowledge.model_trials.paid()
