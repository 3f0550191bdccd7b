"""The controller: in every round it drafts what should give the most tokens per time.

It is the drafter of one request. The free sources (`tree.py`) grow the tree with the best expected
rate; for a draft model and a trained drafter the number of passes with the best expected rate is
known from what they brought before (`ModelWorth`). The best of these and plain decoding is chosen.
A model's answer joins what the free sources expect, if these offer anything.

Three tables decide: what passes cost (`costs.py`), how often ids at each depth of a draft were
accepted (`knowledge.py`), and what drafting has lost so far (`losses.py`). They are learned from
the time that drafting and verification took (`Round`), and from nothing else: a consumer or another
request may do between two rounds what it likes. Equal times and equal rounds give equal decisions:
nothing is random.

* The yardstick is a *bare* round of plain decoding: it runs ahead, so that host and device overlap,
  and keeps nothing for later drafts. The first rounds are bare, to be timed. Everything that takes
  longer is a loss, until drafts bring it back: waiting for drafts, keeping the target's logits.
* Losses are bounded, whatever was expected. While drafting rests, rounds are bare.
* A model reads what it has not, a prompt above all, when the rest of the answer is expected to save
  that time (`ModelDraft.saves_reading`).
* What is not expected to pay is tried again after waits that double (`Trials`): only drafts tell
  what drafts cost and bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokalign.runtime.draft.costs import HICCUP, MAX_DRAFT, MAX_IDS, LearnedCosts, Plan
from tokalign.runtime.draft.free_offers import FreeOffers
from tokalign.runtime.draft.knowledge import NO_OFFER, NO_TIME, Knowledge
from tokalign.runtime.draft.losses import Losses
from tokalign.runtime.draft.model_drafts import DraftingModel, ModelDraft
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_WAIT = Proposal()
_BARE = Proposal(run_ahead=True, bare=True)
_KEEP = Proposal(run_ahead=True)

_FIRST_TIMING = _BARE, _BARE, _BARE, _BARE, _WAIT, _WAIT
"""The rounds in which plain decoding is timed first: bare ones, of which the first reads the prompt
and the second may compile, and one that does not run ahead. The one before that ends a pass."""

_TIMING = _BARE, _BARE, _WAIT
"""The same now and then, to notice a change of the consumer or the machine."""

_ASKING_SECONDS = 0.05
"""Free sources take less: noise that no pass hid takes a CPU 30 ms for 152,000 ids."""

_LITTLE = 0.1
"""Plain passes that a trial may read for, whatever models have lost."""


class Controller(Drafter):
    """The drafter of one request.

    free: sources that only look up, in microseconds. models: draft in passes; one of each kind.
    timed: whether rounds are timed, to learn what they cost and to choose the lengths of drafts;
    else costs are given, and a model takes its own number of steps.
    costs: what rounds cost. Others than those known are set while passes are shared.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        free: TreeDrafter,
        *models: ModelDrafter,
        timed: bool = True,
    ) -> None:
        self._knowledge, self.is_timed = knowledge, timed
        self._free, self._offers = free, FreeOffers(free, knowledge, timed=timed)
        self.costs: LearnedCosts = knowledge.costs
        self._models = [DraftingModel(model, knowledge, fixed=not timed) for model in models]
        for model in models:
            model.meanwhile = free.ask_ahead
        self.losses = knowledge.losses.next_request()
        self._models_losses = knowledge.models_losses.next_request()
        self._timing = [*_FIRST_TIMING] if timed and not knowledge.rounds else []
        self._before, self._now = _WAIT, _WAIT  # the proposals of the latest two rounds
        self._begun = self._had_tree = False
        self._rounds = -1  # of all requests, after the latest one of this
        self._drafted: list[tuple[ModelDraft, TokenTree[TargetId]]] = []  # in this round
        self._unread = 0  # ids that the models of this round had to read

    # -- what to draft -----------------------------------------------------------------------------

    def propose(self, context: Context, limit: int) -> Proposal:
        knowledge = self._knowledge
        for model in self._models:
            model.known.trials.count()
            model.waited += 1
        knowledge.plain_timings.count()
        knowledge.doubts.count()
        self._before, self._drafted, self._unread = self._now, [], 0
        self._offers.begin_round()
        self._now = self._plan(context, limit) if limit else _WAIT
        return self._now

    def _plan(self, context: Context, limit: int) -> Proposal:
        knowledge, costs, under_way = self._knowledge, self.costs, self._is_under_way
        room = limit  # of the whole answer, as far as is known
        if self._free.rows is None:
            limit = min(limit, MAX_IDS)
        if self.is_timed:
            limit = min(limit, costs.rows.reach - 1)
        learns = self.is_timed and costs is knowledge.costs
        if learns and (timing := self._next_timing()):
            return timing
        if self._free.rows is not None and not under_way and self._may_ask:
            given = [ModelDraft(model, Plan(model.drafter.steps, 0.0)) for model in self._may_ask]
            return self._draft(context, given, limit)
        wanted = self._model_draft(context, limit)
        # Beside a model that may draft, the free sources grow no whole tree.
        over = wanted.plan if wanted and not (wanted.trial or wanted.reading) else NO_OFFER
        offer, plan = self._offers.ask(context.ids, limit, costs, under_way=under_way, over=over)
        if learns and self._is_poor_time(plan, over):
            knowledge.plain_timings.tried()
            self._timing = [*_TIMING]
            return self._timing.pop(0)
        if wanted and offer:
            better = wanted.model.best(costs, limit, plan)
            wanted = wanted._replace(plan=better, offer=offer, beside=plan)
        if wanted and wanted.reading and not wanted.trial:
            wanted.model.missed += wanted.may_save(costs, plan, limit)
        chosen = wanted if wanted and self._is_better(wanted, plan, room) else None
        if chosen and self._forbids(chosen.plan, *self._own_losses, self.losses, by=chosen):
            wanted = chosen = None
        rests = chosen is None and self._forbids(plan, self.losses)
        if not (under_way or rests):
            if chosen:
                return self._draft(context, [chosen], limit, offer)
            if offer:
                self._count_draft()
                return Proposal(tree=offer)
        if rests:
            return _BARE
        waits = wanted is not None and (wanted.trial or self.costs.pays(wanted.plan))
        waits = waits or (self._free.can_offer and self._offers.mean > 0)
        return _WAIT if waits or not self.is_timed else _KEEP

    def _next_timing(self) -> Proposal | None:
        """The next round in which plain decoding is timed, if it is being timed or has to be."""
        doubts = self._knowledge.doubts
        if not self._timing and doubts.is_due and self.costs.is_doubtful:
            doubts.tried()
            self.costs.doubt_plain()
            for model in self._models:  # its times are counted in that of one row
                model.known.drafts.forget()
                model.known.reading.forget()
            self._timing = [*_FIRST_TIMING[1:]]
        return self._timing.pop(0) if self._timing else None

    def _is_better(self, draft: ModelDraft, offered: Plan, room: int) -> bool:
        """Whether a model is to draft, in place of what the free sources offer. Where it has to
        read, the rest of the answer, of at most `room` ids, has to be expected to save that time.
        """
        pays = self.costs.pays(draft.plan)
        if draft.trial or not draft.reading:
            return draft.trial or (pays and draft.plan.rate > offered.rate)
        if not pays and not self._models_losses.allow(draft.reading / self.costs.plain):
            return False
        return draft.saves_reading(room)

    @property
    def _own_losses(self) -> list[Losses]:
        """Those of the models by themselves, where the free sources can draft in their place."""
        return [self._models_losses] if self._free.can_offer else []

    def _forbids(self, plan: Plan, *accounts: Losses, by: ModelDraft | None = None) -> bool:
        """Whether what was lost forbids a round, if it may bring nothing. by: who drafts, if it is
        a model."""
        plain = self.costs.plain
        worst = (self.costs.rows(1 + plan.length) + (by.time if by else 0.0)) / plain - 1.0
        return self.is_timed and any(one.forbids(plain * plan.rate, worst) for one in accounts)

    @property
    def _is_under_way(self) -> bool:
        """Whether the pass of this round has begun already."""
        return self._before.run_ahead and self.costs.runs_ahead

    def _is_poor_time(self, offered: Plan, by_model: Plan) -> bool:
        """Whether to time plain decoding now, if that is due: where no model would draft and the
        offer is no better than usual. Three rounds of a long copy may be a seventh of an answer."""
        timings = self._knowledge.plain_timings
        is_poor = not self.costs.pays(by_model) and not self._offers.is_rich(offered, self.costs)
        return timings.is_overdue or (timings.is_due and is_poor)

    @property
    def _may_ask(self) -> Sequence[DraftingModel]:
        """The models that may draft in this round. In the one that reads the prompt a draft model
        would have to read it too."""
        return [] if self.is_timed and not self._begun else self._models

    def _model_draft(self, context: Context, limit: int) -> ModelDraft | None:
        """The draft that is expected to be best, or one that is a trial; None where there are no
        models, or what they have lost forbids it."""
        drafts = []
        for model in self._may_ask:
            plan = model.best(self.costs, limit)
            reading = model.reading(context.ids) if self.is_timed else 0.0
            trial = self.is_timed and not self.costs.pays(plan) and model.known.trials.is_due
            if trial and reading >= _LITTLE * self.costs.plain:
                trial = self._models_losses.allow(reading / self.costs.plain)
            drafts.append(ModelDraft(model, plan, trial, reading))
        if not drafts:
            return None
        best = max(drafts, key=lambda draft: (draft.trial, draft.plan.rate))
        resting = [losses for losses in self._own_losses if losses.is_resting]
        drafts_now = best.trial or self.costs.pays(best.plan)
        return None if drafts_now and self._forbids(best.plan, *resting, by=best) else best

    def _draft(
        self,
        context: Context,
        drafts: Sequence[ModelDraft],
        limit: int,
        offer: TokenTree[TargetId] | None = None,
    ) -> Proposal:
        """Draft with models, and join what the free sources expect.

        offer: of the free sources, if they were asked. If they know nothing here, models are asked
        without them; if no model answers, it is proposed. A trial, and now and then another draft,
        is longer than expected to be best, to see what that costs and brings.
        """
        knowledge, answers = self._knowledge, []
        longer = knowledge.long_drafts.is_due
        passes, counts, waited = 0, dict[str, int](), 0.0
        for draft in drafts:
            model, plan, length = draft.model, draft.plan, draft.plan.length
            model.known.trials.tried(pays=not draft.trial and self.costs.pays(plan))
            if self.is_timed and self._free.rows is None and (draft.trial or longer):
                length = 2 * length + 1
            if (length := min(length, limit, MAX_DRAFT)) != plan.length:
                plan = replace(plan, length=length)
            waited += model.drafter.wait_for_others()
            model.missed, model.waited = 0.0, 0
            self._unread += model.unread(context.ids) if self.is_timed else 0
            found = model.drafter.draft(context, steps=length, limit=limit)
            passes += found.draft_passes
            counts.update(found.counts)
            if found.draft_passes:  # else it is a trained drafter before the target's first pass
                self._drafted.append((draft._replace(plan=plan), found.tree))
                answers.append(model.drafter.answer(found))
        self._count_draft()
        if not answers:
            if offer is None:
                offer, _ = self._offers.ask(context.ids, limit, self.costs, under_way=False)
            return Proposal(tree=offer, draft_passes=passes, counts=counts, waited=waited)
        spent = sum(draft.time for draft, _ in self._drafted)
        most, alone = min(limit, self._free.most), offer is not None and not offer

        def joined(*, hopeful: bool) -> TokenTree[TargetId]:
            times = [time + spent for time in self.costs.by_proposed(most, hopeful=hopeful)]
            return self._free.offer(context.ids, limit, times, answers=answers, alone=alone)[0]

        tree = joined(hopeful=False)
        if tree and longer and self.is_timed:
            tree = joined(hopeful=True)
        return Proposal(tree=tree, draft_passes=passes, counts=counts, waited=waited)

    def _count_draft(self) -> None:
        """Record a draft. If a longer one is due, this is the longer one."""
        trials = self._knowledge.long_drafts
        if trials.is_due:
            trials.tried()
        trials.count()

    # -- what became of it -------------------------------------------------------------------------

    def observe(self, round_: Round) -> None:
        knowledge = self._knowledge
        if self.is_timed and self._begun:
            self._time(round_, alone=knowledge.rounds == self._rounds)
            if self._had_tree:
                self.costs.observe_rereading(max(0, round_.rows - 1 - len(round_.tree)))
        self._begun, self._had_tree = True, bool(round_.tree)
        knowledge.rounds += 1
        knowledge.plain_rounds += not round_.tree
        self._rounds = knowledge.rounds
        knowledge.losses, knowledge.models_losses = self.losses, self._models_losses
        self._free.observe(round_)
        for model in self._models:
            model.drafter.observe(round_)
        for draft, tree in self._drafted:
            draft.learn(tree, round_, self.costs)

    def _time(self, round_: Round, *, alone: bool) -> None:
        """Learn from the times of a round. alone: no other request had a round since the latest."""
        costs = self.costs
        plain, has_unit = costs.plain, costs.rows.is_calibrated
        costs.rows.count_round()
        if (drafting := self._drafting_time(round_, plain)) is None:
            return
        took, tokens = self._took(round_, drafting, plain, alone=alone), len(round_.emitted)
        self._offers.learn_asking(drafting, plain, rests=self._before.bare)
        # Until one row was timed, an assumed curve may have any unit: nothing counts as lost.
        lost, by_models = has_unit * (took / plain - tokens), bool(self._drafted)
        self.losses.account(lost, tokens, drafted=bool(round_.tree))
        self._models_losses.account(lost * by_models, tokens, drafted=by_models)

    def _drafting_time(self, round_: Round, plain: float) -> float | None:
        """The time of drafting without that of reading, which is no loss of this draft. None if it
        tells nothing: a first draft may compile, and has read for a time that is not known, as the
        free sources have when they were first asked."""
        drafts = [draft for draft, _ in self._drafted]
        is_known = all(draft.model.known.drafts.is_calibrated for draft in drafts)
        is_first = not all(draft.model.has_drafted for draft in drafts)
        for draft in drafts:
            draft.model.has_drafted = True
        if self._offers.were_first_asked:
            return None
        expected = sum(draft.time for draft in drafts)
        if self._unread and is_known:
            if len(drafts) == 1:
                drafts[0].model.learn_reading(self._unread, round_.drafting - expected)
            return expected
        if is_first:
            return None
        usual = max(expected, plain, _ASKING_SECONDS)
        return min(round_.drafting, HICCUP * usual) if is_known else round_.drafting

    def _took(self, round_: Round, drafting: float, plain: float, *, alone: bool) -> float:
        """Learn from the times of a round. Returns: what counts as its time."""
        costs, under_way, runs_ahead = self.costs, self._is_under_way, self._now.run_ahead
        if round_.tree or not (under_way or runs_ahead):
            expected = costs.rows(round_.rows) + drafting
            costs.rows.observe(round_.rows, max(round_.verification, NO_TIME))
            if len(self._drafted) == 1:
                draft, _ = self._drafted[0]
                draft.model.learn_time(draft.plan.length, drafting)
            if round_.tree:  # by what such passes take: this one may have been delayed
                return min(costs.rows(round_.rows) + drafting, HICCUP * expected)
            # What waiting for a draft costs in the mean: this round may have been slow.
            return costs.rows(1) + drafting
        if under_way and runs_ahead:
            is_bare = self._before.bare and self._now.bare
            # A pass that has begun before another request's round may be done by now.
            if alone and self._before.bare == self._now.bare:
                seconds = max(drafting + round_.verification, NO_TIME)
                costs.observe_ahead(seconds, is_bare=is_bare)
            return plain if is_bare else costs.keeping
        # A pass lies partly in another round.
        return plain if under_way else costs.rows(1) + drafting
