"""What a model's draft is expected to take and to bring, and what is learned of both.

A `DraftingModel` is a draft model or a trained drafter in one request, and a `ModelDraft` is what
it may draft in one round. `controller.py` chooses among these and what the free sources offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokalign.runtime.draft.costs import MAX_DRAFT, LearnedCosts, Plan
from tokalign.runtime.draft.knowledge import NO_OFFER, NO_TIME, Knowledge
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.draft.tree import MOST_READ
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_COMING = 32
"""An answer is expected to go on for as many rounds as the model has waited, and these."""

_DOUBT = 4
"""Rounds in which reading would have saved nothing, to which the mean of the others is drawn."""

_FEW, _MANY = 16, 64
"""So few ids are read as a part of a usual draft; the time of so many tells what one takes."""


class DraftingModel:
    """A model that drafts in passes.

    knowledge: of all requests. fixed: whether it always takes its own number of steps.
    known: of this kind of model. acceptance: of its drafts in this request. waited, missed: the
    rounds since it last read, and the time that it is expected to have saved in them, had it read
    on.
    """

    def __init__(self, drafter: ModelDrafter, knowledge: Knowledge, *, fixed: bool) -> None:
        self.drafter, self.known = drafter, knowledge.models[drafter.kind]
        self.acceptance = self.known.worth.acceptance.of_request()
        self.missed, self.waited, self.has_drafted = 0.0, 0, False
        self._rows, self._fixed = knowledge.costs.rows, fixed

    @property
    def _row(self) -> float:
        """The time of the target's pass over one row that this request has for itself."""
        return self._rows(1)

    def unread(self, ids: Sequence[TargetId]) -> int:
        """How many of these ids it has to read before it drafts, if that is more than usual."""
        unread = self.drafter.unread(ids)
        return unread if unread > _FEW else 0

    def reading(self, ids: Sequence[TargetId]) -> float:
        """The time that it takes to read what it has not."""
        return self.unread(ids) * self.known.reading(1) * self._row

    def times(self, most: int) -> Sequence[float]:
        """Times of drafts of 1, 2, ..., `most` steps: passes, or ids that all take one pass."""
        if self.drafter.in_one_pass:
            return [self.known.times(1, self._row)[0]] * most
        return self.known.times(most, self._row)

    def best(
        self, costs: LearnedCosts, limit: int, beside: Plan = NO_OFFER, luck: float = 0.0
    ) -> Plan:
        """The draft that is expected to be best, beside what the free sources offer.

        costs: of this round. luck: see `ModelWorth.best`.
        """
        most_ahead = MOST_READ if self.drafter.reads_ahead else 0
        return self.known.worth.best(
            costs,
            self.times(min(limit, MAX_DRAFT)),
            self.acceptance,
            steps=self.drafter.steps if self._fixed else None,
            beside=beside,
            ahead=min(max(0.0, beside.tokens - 1.0), most_ahead),
            luck=luck,
        )

    def learn_reading(self, unread: int, seconds: float) -> None:
        """It read so many ids in this time. Few ids tell nothing."""
        if unread >= _MANY:
            self.known.reading.observe(1, max(NO_TIME, seconds / unread / self._row))

    def learn_time(self, steps: int, seconds: float) -> None:
        passes = 1 if self.drafter.in_one_pass else steps
        self.known.drafts.observe(passes, seconds / self._row)


class ModelDraft(NamedTuple):
    """What a model is to draft, in steps. trial: although it is not expected to pay. reading: the
    time of what it has to read before. offer, beside: what the free sources would propose instead.
    """

    model: DraftingModel
    plan: Plan
    trial: bool = False
    reading: float = 0.0
    offer: TokenTree[TargetId] = EMPTY_TREE
    beside: Plan = NO_OFFER

    @property
    def time(self) -> float:
        """What it is expected to take, once everything is read."""
        return self.model.times(self.plan.length)[-1]

    def may_save(self, costs: LearnedCosts, offered: Plan, limit: int) -> float:
        """The time that the model may save in this round, had it read what it has not.

        It may be right more or less often than is usual, and is not asked where it would lose: the
        mean of two cases, half of the standard deviation above and below what is expected. Not all
        of it, for it takes drafts to find out (`lab/results/real-models.md`).
        """
        half, saved = self.model.acceptance.spread / 2, 0.0
        for luck in (-half, half):
            perhaps = self.model.best(costs, limit, self.beside, luck)
            saved += max(0.0, perhaps.tokens * (1.0 / offered.rate - 1.0 / perhaps.rate))
        return saved / 2

    def saves_reading(self, room: int) -> bool:
        """Whether the rest of the answer is expected to save the time of reading: as many rounds
        as it has had, and some more, but `room` ids at most."""
        missed, waited = self.model.missed, self.model.waited
        rounds = min(waited + _COMING, room / self.plan.tokens)
        return missed / (waited + _DOUBT) * rounds > self.reading

    def learn(self, drafted: TokenTree[TargetId], round_: Round, costs: LearnedCosts) -> None:
        """Learn what became of a draft. costs: of its round."""
        known, accepted = self.model.known, round_.emitted[:-1]
        tokens = len(round_.emitted)
        known.worth.learn(
            self.plan.length,
            len(drafted.path_of(accepted)),
            self.model.acceptance,
            known=tokens,
            rows=len(round_.tree),
            beside=self.beside,
            ahead=len(self.model.drafter.read_ahead.path_of(accepted)),
        )
        # By what such rounds take: this one may have included reading the prompt.
        took = self.time + costs.rows(round_.rows)
        free = (1 + len(self.offer.path_of(accepted))) / costs.rows(1 + len(self.offer))
        if tokens / took > max(1.0 / costs.plain, free):
            known.trials.paid()
