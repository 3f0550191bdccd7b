"""What is known of one machine, one target and what drafts for it; requests share it.

The controller (`controller.py`) decides by it and learns it, `opening_knowledge.py` begins it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tokalign.runtime.draft.costs import MAX_DRAFT, Costs, LearnedCosts, PassTimes, Plan
from tokalign.runtime.draft.losses import Losses
from tokalign.runtime.draft.neural import DRAFT, DRAFTER, Acceptance

_MEMORY = 32
"""Drafts that a mean looks back on."""

_BESIDE = 0.6
"""The share of what the free sources expect here by themselves that adds to what a model expects;
the rest is known to both. With 0.4 fewer tokens per time came of it, with 0.8 as many
(`lab/results/real-models.md`)."""

_MOST = 0.95
"""The most that an id of a model is expected to be right, with luck."""

NO_TIME = 1e-9
"""What takes next to nothing, as far as is known."""

NO_OFFER = Plan(0, 0.0)
"""The free sources offer nothing."""


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

    @property
    def is_overdue(self) -> bool:
        """Whether it has been due for as long as it waited before."""
        return self._waited >= 2 * self._wait

    def count(self) -> None:
        self._waited += 1

    def tried(self, *, pays: bool = False) -> None:
        """It is tried. If it does not pay, the next trial waits twice as long."""
        self._waited = 0
        self._wait = 0 if pays else self._next
        self._next = self._first if pays else min(2 * self._next, self._longest)

    def paid(self) -> None:
        """The latest trial has brought more than it cost, so it is repeated at once: the text may
        have changed, and one draft in hundreds of rounds would take long to tell."""
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
        drafts: Sequence[float],
        acceptance: Acceptance | None = None,
        *,
        steps: int | None = None,
        beside: Plan = NO_OFFER,
        ahead: float = 0.0,
        luck: float = 0.0,
    ) -> Plan:
        """The number of passes with the best expected rate.

        drafts: times of drafts of 1, 2, ... passes, up to the most there may be.
        acceptance: of this request; that of all where none is given.
        steps: the number to take, if it is given; fewer only where fewer are possible.
        beside: what the free sources would propose here.
        ahead: how many right ids its first pass is expected to read ahead.
        luck: how much more often than expected its ids are right.
        """
        fixed = None if steps is None else min(steps, len(drafts))
        most, (further, part) = fixed or len(drafts), divmod(ahead, 1.0)
        known = (acceptance or self.acceptance).probabilities(most + int(further) + 1)
        # Where more rows take less than fewer, as on hardware with steps, there will be more.
        by_proposed = costs.by_proposed(max(2 * most, beside.length) + 1)
        times = [*accumulate(reversed(by_proposed), min)][::-1]
        free = max(1.0, 1.0 + _BESIDE * (beside.tokens - 1.0) + self._added)
        best, right, reached = Plan(0, 0.0), [0.0], 1.0
        for probability in known:
            reached *= min(max(probability + luck, 0.0), _MOST)
            right.append(right[-1] + reached)
        for passes, draft in enumerate(drafts[:most], 1):
            depth = passes + int(further)
            tokens = free + right[depth] + part * (right[depth + 1] - right[depth])
            # In some rounds nothing of a draft is worth a row, so that less than one a pass is
            # verified in the mean. But whatever is accepted had a row.
            proposed = max(passes * self._rows_per_pass, tokens - free, beside.length)
            whole = min(int(proposed), len(times) - 2)
            verified = times[whole] + (proposed - whole) * (times[whole + 1] - times[whole])
            rate = tokens / (verified + draft)
            if passes == fixed or (fixed is None and rate > best.rate):
                best = Plan(passes, rate, tokens)
        return best

    def learn(
        self,
        passes: int,
        right: int,
        acceptance: Acceptance | None = None,
        *,
        known: int,
        rows: int,
        beside: Plan = NO_OFFER,
        ahead: int = 0,
    ) -> None:
        """A draft of `passes` passes predicted the first `right` of the next `known` emitted ids.
        The last of these is the target's own.

        rows: how many ids were worth verifying. acceptance, beside: as of `best`.
        ahead: how many of these ids its first pass had read.
        """
        added = known - 1 - right - _BESIDE * (beside.tokens - 1.0)
        for one in {self.acceptance, acceptance or self.acceptance}:
            one.observe(min(known, max(passes + ahead, right)), right)
        self._rows_per_pass += (rows / passes - self._rows_per_pass) / _MEMORY
        self._added += (added - self._added) / _MEMORY


def new_worth() -> dict[str, ModelWorth]:
    """That of every kind of model, of which nothing is known."""
    return {kind: ModelWorth() for kind in (DRAFT, DRAFTER)}


@dataclass(slots=True)
class ModelKnowledge:
    """What is known of a model that drafts.

    Times are counted in passes of the target over one row, for what slows one slows the other: a
    chip that gets hot, or other programs. So what was measured yesterday still holds.
    drafts: time of a draft by its passes. reading: of an id that it reads before it drafts.
    trials: when it is tried although it does not pay.
    """

    drafts: PassTimes
    worth: ModelWorth = field(default_factory=ModelWorth)
    reading: PassTimes = field(default_factory=lambda: PassTimes([NO_TIME], weight=0))
    trials: Trials = field(default_factory=lambda: Trials(8, 128, at_once=True))

    def times(self, most: int, row: float) -> Sequence[float]:
        """Times of drafts of 1, 2, ..., `most` passes. row: time of the target's over one row."""
        return [passes * row for passes in self.drafts.table(most)]


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """What is known of one machine, one target and what drafts; it holds nothing of any text.

    Requests share it, and each begins with what the latest one had learned about offers and losses.
    models: of each model that drafts, by its kind. long_drafts, plain_timings: when a draft is made
    longer than expected to be best, and a round has no draft so that it can be timed. doubts: when
    plain decoding is timed again because its times cannot be.
    rounds, plain_rounds: of all requests so far, and those of them without a proposal.
    offers: what waiting for the free sources' offers is worth, in plain passes a round.
    """

    costs: LearnedCosts
    models: Mapping[str, ModelKnowledge] = field(default_factory=dict)
    long_drafts: Trials = field(default_factory=lambda: Trials(8))
    plain_timings: Trials = field(default_factory=lambda: Trials(64, 1024))
    doubts: Trials = field(default_factory=lambda: Trials(4, at_once=True))
    losses: Losses = field(default_factory=Losses)
    models_losses: Losses = field(default_factory=Losses.of_models)
    offers: float = 0.05
    rounds: int = 0
    plain_rounds: int = 0

    @classmethod
    def given(cls, costs: Costs, worth: Mapping[str, ModelWorth] | None = None) -> Knowledge:
        """What is known where costs are given. worth: of each kind of model."""
        rows = PassTimes(costs.by_proposed(max(1, len(costs.rows) - 1)), weight=1)
        times = [n * costs.draft_pass / rows(1) for n in range(1, MAX_DRAFT + 1)]
        known = {
            kind: ModelKnowledge(PassTimes(times, weight=1), of)
            for kind, of in (worth or new_worth()).items()
        }
        return cls(costs=LearnedCosts(rows), models=known)

    def why_plain(self) -> str | None:
        """One line for the user if most rounds were plain decoding; None otherwise."""
        if self.plain_rounds <= self.rounds / 2:
            return None
        row = self.costs.rows(2) / self.costs.plain
        return (
            f"auto: {self.plain_rounds} of {self.rounds} rounds were plain decoding, drafting was "
            f"not expected to pay (verifying 2 rows takes {row:.2f} plain passes)"
        )
