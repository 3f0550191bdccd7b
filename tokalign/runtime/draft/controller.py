"""The controller: in every round it drafts what should give the most tokens per time.

It is the drafter of one request. The free sources (`tree.py`) grow the tree with the best expected
rate; for a draft model the number of passes with the best expected rate is known from what it
brought before (`ModelWorth`). The best of these two and plain decoding is chosen. A draft
model's answer joins what the free sources expect, if these offer anything.

Three tables decide: what passes cost (`costs.py`), how often ids at each depth of a draft were
accepted, and what drafting has lost so far (`Losses`). They are learned from the time that drafting
and verification took (`Round`), and from nothing else: a consumer or another request may do between
two rounds what it likes. Equal times and equal rounds give equal decisions: nothing is random.

* The yardstick is a *bare* round of plain decoding: it runs ahead, so that host and device overlap,
  and keeps nothing for later drafts. The first rounds are bare, to be timed. Everything that takes
  longer is a loss, until drafts bring it back: waiting for drafts, keeping the target's logits.
* Losses are bounded, whatever was expected. While drafting rests, rounds are bare.
* What is not expected to pay is tried again after waits that double (`Trials`): only drafts tell
  what drafts cost and bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tokalign.runtime.draft.costs import (
    BARE,
    KEEPING,
    MAX_DRAFT,
    MAX_IDS,
    Costs,
    LearnedCosts,
    PassTimes,
    Plan,
)
from tokalign.runtime.draft.neural import Acceptance, ModelDrafter
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_WAIT = Proposal()
_BARE = Proposal(run_ahead=True, bare=True)
_KEEP = Proposal(run_ahead=True)

_FIRST_TIMING = _BARE, _BARE, _BARE, _BARE, _WAIT, _WAIT
"""The rounds in which plain decoding is timed first: bare ones, of which the first reads the prompt
and the second may compile, and one that does not run ahead. The one before that ends a pass."""

_TIMING = _BARE, _BARE, _WAIT
"""The same now and then, to notice a change of the consumer or the machine."""

_MEMORY = 32
"""Drafts and offers that their means look back on."""

_ASKING_SHARE, _ASKING_MEMORY = 0.01, 8
"""While plain decoding runs ahead, asking the sources may take this share of the time; a quarter of
it while drafting rests."""


class Trials:
    """When something is tried that is not expected to pay: after waits that double.

    A wait is counted in rounds or drafts. first: the first wait. longest: the longest one.
    at_once: whether the first trial is due without a wait.
    """

    def __init__(self, first: int, longest: int = 1024, *, at_once: bool = False) -> None:
        self._first, self._longest = first, longest
        self._wait, self._next = (0, first) if at_once else (first, 2 * first)
        self._waited = 0

    @property
    def is_due(self) -> bool:
        return self._waited >= self._wait

    def count(self) -> None:
        self._waited += 1

    def tried(self, *, pays: bool = False) -> None:
        """It is tried. If it does not pay, the next trial waits twice as long."""
        self._waited = 0
        self._wait = 0 if pays else self._next
        self._next = self._first if pays else min(2 * self._next, self._longest)

    def paid(self) -> None:
        """The latest trial has brought more than it cost, so it is repeated at once.

        The text may have changed, and one draft in hundreds of rounds would take long to tell.
        """
        self._wait = 0


class ModelWorth:
    """How many passes of a draft model pay, by how often it was right and what a pass brings.

    Where free sources join its drafts, they add tokens that it does not know.
    acceptance: how often the id at each depth was right.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self._rows_per_pass = 1.0
        self._added = 0.0

    def best(
        self,
        costs: LearnedCosts,
        most: int,
        *,
        steps: int | None = None,
        in_one_pass: bool = False,
    ) -> Plan:
        """The number of passes, from 1 to `most`, with the best expected rate.

        steps: the number to take, if it is given; fewer only where `most` is less. in_one_pass:
        the number is one of ids, which all take one pass.
        """
        fixed = None if steps is None else min(steps, most)
        probabilities = self.acceptance.probabilities(fixed or most)
        times, drafts = (
            costs.by_proposed(2 * len(probabilities)),
            costs.draft_times(len(probabilities)),
        )
        if in_one_pass:
            drafts = [drafts[0]] * len(probabilities)
        best, tokens, reached = Plan(0, 0.0), 1.0 + self._added, 1.0
        for passes, (probability, draft) in enumerate(zip(probabilities, drafts, strict=True), 1):
            reached *= probability
            tokens += reached
            # In some rounds nothing of a draft is worth a row, so that less than one a pass is
            # verified in the mean. But whatever is accepted had a row.
            proposed = max(passes * self._rows_per_pass, tokens - 1.0 - self._added)
            whole = min(int(proposed), len(times) - 2)
            verified = times[whole] + (proposed - whole) * (times[whole + 1] - times[whole])
            rate = tokens / (verified + draft)
            if passes == fixed or (fixed is None and rate > best.rate):
                best = Plan(passes, rate, tokens)
        return best

    def learn(self, passes: int, right: int, *, known: int, rows: int, added: int = 0) -> None:
        """A draft of so many passes predicted the first `right` of the next `known` emitted ids.

        rows: how many ids were worth verifying. added: how many more were accepted, because free
        sources joined the draft.
        """
        self.acceptance.observe(min(known, max(passes, right)), right)
        self._rows_per_pass += (rows / passes - self._rows_per_pass) / _MEMORY
        self._added += (added - self._added) / _MEMORY


FIRST_LOSS, EARLY_SHARE = 1.5, 0.015
MOST_LOST, SHARE = 7.0, 0.003
"""After n tokens, drafting may have lost the time of `FIRST_LOSS` + `EARLY_SHARE` n passes, or of
`MOST_LOST` + `SHARE` n if that is less."""

CREDIT = 64.0
"""Passes that drafting has gained count up to this many against later losses."""

_REST = 0.25
"""Drafting resumes when the loss is this many passes below the bound; else it would rest again
before it has drafted, as even a round that only waits for a draft loses a little."""

_PROMISE, _FIRST_WAIT, _LONGEST_WAIT = 1.25, 2.0, 1024.0

_HICCUP = 2.0
"""A round counts as at most this many times what was expected: other programs may delay it."""


@dataclass(slots=True)
class Balance:
    """What drafting has lost, in bare plain rounds, and the tokens meanwhile."""

    lost: float = 0.0
    tokens: int = 0

    @property
    def excess(self) -> float:
        """By how much the loss is above its bound."""
        n = self.tokens
        return self.lost - min(FIRST_LOSS + EARLY_SHARE * n, MOST_LOST + SHARE * n)

    def account(self, lost: float, tokens: int) -> None:
        self.lost = max(-CREDIT, self.lost + lost)
        self.tokens += tokens


@dataclass(slots=True, kw_only=True)
class Losses:
    """Whether drafting of one request has to rest, because it has lost what it may lose.

    A request may lose a share of its own tokens, and all together one of all their tokens. So a
    session of short requests may lose what one long request may.
    A rest must not outlast its cause, which may have been another text or a slow moment of the
    machine. So a draft that promises much is tried, the sooner the more it promises: one that
    promises twice plain decoding's rate after `_FIRST_WAIT` rounds, and after twice as many
    whenever a try has lost.
    """

    own: Balance = field(default_factory=Balance)
    total: Balance
    is_resting: bool = False
    rested: float = 0.0
    wait: float = _FIRST_WAIT

    def next_request(self) -> Losses:
        """That of a new request: it goes on resting, and tries again four times as soon."""
        wait = max(_FIRST_WAIT, self.wait / 4)
        return replace(self, own=Balance(), wait=wait)

    def forbids(self, promised: float, worst: float = 0.0) -> bool:
        """Whether drafting rests although it promises so many times plain decoding's rate.

        worst: how many plain rounds the draft would lose if nothing of it was accepted.
        """
        excess = max(self.own.excess, self.total.excess) + worst
        self.is_resting = excess > (-_REST if self.is_resting else 0.0)
        waits = promised < _PROMISE or self.rested * (promised - 1.0) < self.wait
        return self.is_resting and waits

    def account(self, lost: float, tokens: int, *, drafted: bool) -> None:
        """A round lost so many plain rounds. drafted: whether it verified a draft."""
        self.own.account(lost, tokens)
        self.total.account(lost, tokens)
        if not self.is_resting:
            self.rested = 0.0
        elif not drafted:
            self.rested += 1
        elif lost > 0:
            self.rested, self.wait = 0.0, min(2 * self.wait, _LONGEST_WAIT)
        else:
            self.rested, self.wait = _LONGEST_WAIT, _FIRST_WAIT  # the next may follow at once


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """What is known of one machine, one target and one draft model; it holds nothing of any text.

    Requests share it, and each begins with what the latest one had learned about offers and losses.
    model_trials, long_drafts, plain_timings: when a draft model that does not pay is tried, a draft
    is made longer than expected to be best, and a round has no draft so that it can be timed.
    rounds, plain_rounds: of all requests so far, and those of them without a proposal.
    offers: what waiting for the free sources' offers is worth, in plain passes a round.
    """

    costs: LearnedCosts
    model: ModelWorth = field(default_factory=ModelWorth)
    model_trials: Trials = field(default_factory=lambda: Trials(8, 128, at_once=True))
    long_drafts: Trials = field(default_factory=lambda: Trials(8))
    plain_timings: Trials = field(default_factory=lambda: Trials(64, 1024))
    losses: Losses = field(default_factory=lambda: Losses(total=Balance()))
    offers: float = 0.05
    rounds: int = 0
    plain_rounds: int = 0

    @classmethod
    def given(cls, costs: Costs, model: ModelWorth | None = None) -> Knowledge:
        """What is known where costs are given. model: what is known of the draft model."""
        rows = PassTimes(costs.by_proposed(max(1, len(costs.rows) - 1)), weight=1)
        drafts = PassTimes([n * costs.draft_pass for n in range(1, MAX_DRAFT + 1)], weight=1)
        return cls(costs=LearnedCosts(rows, drafts), model=model or ModelWorth())

    def why_plain(self) -> str | None:
        """One line for the user if most rounds were plain decoding; None otherwise."""
        if self.plain_rounds <= self.rounds / 2:
            return None
        row = self.costs.rows(2) / self.costs.plain
        return (
            f"auto: {self.plain_rounds} of {self.rounds} rounds were plain decoding, drafting was "
            f"not expected to pay (verifying 2 rows takes {row:.2f} plain passes)"
        )


class Controller(Drafter):
    """The drafter of one request.

    free: sources that only look up, in microseconds. model: drafts in passes; None without one.
    steps: so many passes whenever the model drafts; None to choose their number.
    timed: whether the rounds' times are learned from; not where costs are given.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        free: TreeDrafter,
        model: ModelDrafter | None = None,
        *,
        steps: int | None = None,
        timed: bool = True,
    ) -> None:
        self._knowledge, self._free, self._model, self._steps = knowledge, free, model, steps
        self._timed = timed
        self.losses, self._offers = knowledge.losses.next_request(), knowledge.offers
        self._timing = [*_FIRST_TIMING] if timed and not knowledge.rounds else []
        self._before, self._now = _WAIT, _WAIT  # the proposals of the latest two rounds
        self._begun = self._had_tree = False
        self._rounds = -1  # of all requests, after the latest one of this
        self._until_asked, self._asking, self._asked_beside = 0, 0.0, False
        self._drafted: TokenTree[TargetId] = EMPTY_TREE  # by the model in this round
        self._passes = 0
        self._model_has_read = not timed
        """Whether the draft model has read the prompt, so that its drafts may be timed."""

    # -- what to draft -----------------------------------------------------------------------------

    def propose(self, context: Context, limit: int) -> Proposal:
        knowledge = self._knowledge
        knowledge.model_trials.count()
        knowledge.plain_timings.count()
        self._before, self._passes, self._asked_beside = self._now, 0, False
        self._now = self._plan(context, limit) if limit else _WAIT
        return self._now

    def _plan(self, context: Context, limit: int) -> Proposal:
        knowledge, costs, under_way = self._knowledge, self._knowledge.costs, self._before.run_ahead
        if self._free.rows is None:
            limit = min(limit, MAX_IDS)
        if self._timed:
            limit = min(limit, costs.rows.reach - 1)
        if self._timed and not self._timing and knowledge.plain_timings.is_due:
            knowledge.plain_timings.tried()
            self._timing = [*_TIMING]
        if self._timing:
            return self._timing.pop(0)
        offer, plan = self._ask(context, limit)
        model, trial = self._model_plan(limit)
        rate = 0.0 if model is None else model.rate
        pays = rate * costs.plain > 1.0
        drafts = model is not None and (trial or (pays and rate > plan.rate))
        rests = self._timed and self.losses.forbids(
            costs.plain * max(plan.rate, rate), self._worst(model if drafts else None, plan)
        )
        if not (under_way or rests):
            if model is not None and drafts:
                knowledge.model_trials.tried(pays=not trial)
                return self._draft(context, model.length, limit, offer, trial=trial)
            if offer:
                self._count_draft()
                return Proposal(tree=offer)
        if rests:
            return _BARE
        waits = pays or trial or (self._free.can_offer and self._offers > 0)
        return _WAIT if waits or not self._timed else _KEEP

    def _worst(self, model: Plan | None, plan: Plan) -> float:
        """How many plain rounds a draft loses of which nothing is accepted; without one, a round
        that waits for nothing."""
        costs, drafting = self._knowledge.costs, 0.0
        if model is not None:
            plan, drafting = model, self._draft_time(model.length)
        return (costs.rows(1 + plan.length) + drafting) / costs.plain - 1.0

    def _ask(self, context: Context, limit: int) -> tuple[TokenTree[TargetId], Plan]:
        """The free sources' best tree, and its plan; asked seldom where it cannot be used."""
        knowledge, costs = self._knowledge, self._knowledge.costs
        under_way = self._before.run_ahead
        self._until_asked -= 1
        self._asked_beside = under_way and self._free.can_offer and self._until_asked <= 0
        if not self._free.can_offer or (under_way and not self._asked_beside):
            return EMPTY_TREE, Plan(0, 1.0 / costs.rows(1))
        hopeful = self._timed and knowledge.long_drafts.is_due
        # Noise that was not made during a pass takes a CPU 30 ms for 152,000 ids.
        tree, plan = self._free.offer(
            context.ids,
            limit,
            costs.by_proposed(min(limit, self._free.most), hopeful=hopeful),
            quick=under_way,
        )
        worth = -costs.overlap
        if plan.length:
            worth = plan.tokens - plan.tokens / (plan.rate * costs.plain)
        self._offers = knowledge.offers = self._offers + (worth - self._offers) / _MEMORY
        return tree, plan

    def _model_plan(self, limit: int) -> tuple[Plan | None, bool]:
        """What a draft of the model is expected to give, and whether it is drafted all the same."""
        knowledge = self._knowledge
        # In the round that reads the prompt the draft model would have to read it too.
        if self._model is None or (self._timed and not self._begun):
            return None, False
        if self._free.rows is not None:
            return Plan(self._steps or 1, 0.0), True
        plan = knowledge.model.best(
            knowledge.costs,
            min(limit, MAX_DRAFT),
            steps=self._steps,
            in_one_pass=self._model.in_one_pass,
        )
        loses = plan.rate * knowledge.costs.plain <= 1.0
        return plan, self._timed and loses and knowledge.model_trials.is_due

    def _draft(
        self, context: Context, passes: int, limit: int, offer: TokenTree[TargetId], *, trial: bool
    ) -> Proposal:
        """Draft with the model, and join what the free sources expect.

        offer: of the free sources. If they know nothing here, the model is asked without them; if
        the model does not answer, it is proposed. trial: whether the draft is not expected to pay.
        Then, and now and then, it is longer than expected to be best, to see what that costs and
        brings.
        """
        assert self._model is not None
        knowledge = self._knowledge
        longer = self._timed and knowledge.long_drafts.is_due
        if self._steps is None and (trial or knowledge.long_drafts.is_due):
            passes = 2 * passes + 1
        passes = min(passes, limit, MAX_DRAFT)
        self._count_draft()
        waited = self._model.wait_for_others()
        proposal = self._model.draft(context, steps=passes, limit=limit)
        if not proposal.draft_passes:  # a trained drafter before the target's first pass
            return replace(proposal, tree=offer, waited=waited)
        self._passes, self._drafted = passes, proposal.tree
        spent = self._draft_time(passes)
        answer = self._model.answer(proposal)
        most = min(limit, self._free.most)

        def joined(*, hopeful: bool) -> TokenTree[TargetId]:
            times = [time + spent for time in knowledge.costs.by_proposed(most, hopeful=hopeful)]
            return self._free.offer(context.ids, limit, times, answer=answer, alone=not offer)[0]

        tree = joined(hopeful=False)
        if tree and longer:
            tree = joined(hopeful=True)
        return replace(proposal, tree=tree, waited=waited)

    def _draft_time(self, steps: int) -> float:
        """What a draft of so many steps is expected to take."""
        return self._knowledge.costs.draft_times(self._passes_of(steps))[-1]

    def _passes_of(self, steps: int) -> int:
        """The passes that a draft of so many steps takes: one for each, or one for all."""
        return 1 if self._model is not None and self._model.in_one_pass else steps

    def _count_draft(self) -> None:
        """Record a draft. If a longer one is due, this is the longer one."""
        trials = self._knowledge.long_drafts
        if trials.is_due:
            trials.tried()
        trials.count()

    # -- what became of it -------------------------------------------------------------------------

    def observe(self, one: Round) -> None:
        knowledge = self._knowledge
        if self._timed and self._begun:
            self._time(one, alone=knowledge.rounds == self._rounds)
            if self._had_tree:
                knowledge.costs.observe_rereading(max(0, one.rows - 1 - len(one.tree)))
        self._begun, self._had_tree = True, bool(one.tree)
        knowledge.rounds += 1
        knowledge.plain_rounds += not one.tree
        self._rounds = knowledge.rounds
        knowledge.losses = self.losses
        self._free.observe(one)
        if self._model is not None:
            self._model.observe(one)
        if self._passes:
            self._learn_of_model(one)

    def _time(self, one: Round, *, alone: bool) -> None:
        """Learn from the times of a round. alone: no other request had a round since the latest."""
        costs, drafting, passes = self._knowledge.costs, one.drafting, self._passes
        under_way, runs_ahead = self._before.run_ahead, self._now.run_ahead
        plain, tokens = costs.plain, len(one.emitted)
        costs.rows.count_round()
        if passes and not self._model_has_read:
            self._model_has_read = True
            return
        if one.tree or not (under_way or runs_ahead):
            verification = max(one.verification, 1e-9)
            expected = costs.rows(one.rows) + drafting
            costs.rows.observe(one.rows, verification)
            if passes:
                assert costs.drafts is not None
                costs.drafts.observe(self._passes_of(passes), drafting)
            if one.tree:
                took = min(verification + drafting, _HICCUP * expected)
            else:  # what waiting for a draft costs in the mean: this round may have been slow
                took = costs.rows(1) + drafting
        elif under_way and runs_ahead:
            is_bare = self._before.bare and self._now.bare
            # A pass that has begun before another request's round may be done by now.
            if alone and self._before.bare == self._now.bare:
                seconds = max(drafting + one.verification, 1e-9)
                costs.ahead.observe(BARE if is_bare else KEEPING, seconds)
            took = plain if is_bare else max(plain, costs.ahead(KEEPING))
        else:  # a pass lies partly in another round
            took = plain if under_way else costs.rows(1) + drafting
        if self._asked_beside:
            self._asking += (drafting - self._asking) / _ASKING_MEMORY
            share = _ASKING_SHARE / (4 if self._before.bare else 1)
            self._until_asked = round(self._asking / (share * plain))
        self.losses.account(took / plain - tokens, tokens, drafted=bool(one.tree))

    def _learn_of_model(self, one: Round) -> None:
        knowledge, passes, costs = self._knowledge, self._passes, self._knowledge.costs
        accepted: Sequence[TargetId] = one.emitted[:-1]
        right, known = len(self._drafted.path_of(accepted)), len(one.emitted)
        added = len(accepted) - right
        knowledge.model.learn(passes, right, known=known, rows=len(one.tree), added=added)
        # By what such a round takes: this one may have included reading the prompt.
        if self._draft_time(passes) + costs.rows(one.rows) < costs.plain * known:
            knowledge.model_trials.paid()
