"""What the planner has learned, over all requests: costs, and what drafts and offers were worth.

What depends on one text or on who reads it is kept for each request by itself (`Course`), because
requests may take turns. Drafting rests after losses (`allowance.py`). What is not
expected to pay is done now and then (`Trials`): only drafts tell what drafts cost and bring, and
only plain rounds what these take.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

from tokalign.runtime.draft.allowance import Allowance, DraftBudget
from tokalign.runtime.draft.learned_costs import Costs, LearnedCosts, PassTimes, Plan
from tokalign.runtime.draft.neural import Acceptance

_LONGEST_WAIT = 1024

_PARKED_AFTER, _PROBED, _PROBE = 64, 256, 16


class Parking:
    """When nothing is kept for drafts, because none has been worth it for long.

    Storing what the target found likely takes a part of a small model's pass, and so does the noise
    of coming positions. After `_PARKED_AFTER` rounds in which no draft was right, both stop, except
    in the last `_PROBE` of every `_PROBED` rounds, and sources are looked up more seldom.
    """

    def __init__(self) -> None:
        self._idle = 0

    @property
    def is_parked(self) -> bool:
        """Whether this round keeps nothing."""
        beyond = self._idle - _PARKED_AFTER
        return beyond >= 0 and beyond % _PROBED < _PROBED - _PROBE

    def count(self, *, accepted: int) -> None:
        """A round is over, in which so many drafted ids were accepted."""
        self._idle = 0 if accepted else self._idle + 1


class Trials:
    """When something is tried that is not expected to pay: after waits that double.

    A wait is counted in rounds or drafts. first: the first wait. longest: the longest one.
    at_once: whether the first trial is due without a wait.
    """

    def __init__(self, first: int, longest: int = _LONGEST_WAIT, *, at_once: bool = False) -> None:
        self._first, self._longest = first, longest
        self._wait, self._next = (0, first) if at_once else (first, 2 * first)
        self._waited = 0

    @property
    def is_due(self) -> bool:
        """Whether it has waited long enough."""
        return self._waited >= self._wait

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited long after it was due, so that what hinders it may be mistaken."""
        return self._waited >= self._wait + self._longest

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

    def count_or_try(self) -> None:
        """One more draft, which is the trial if one is due."""
        if self.is_due:
            self.tried()
        self.count()


MAX_DRAFT = 16
"""The most passes of a draft model in a round."""

MAX_IDS = 32
"""The most ids proposed in a round. Chips with a matrix unit take up to 32 rows at one price."""

_HOPE = 0.95
"""A draft model is hopeless if it would not pay even with ids that are right this often."""

_MEMORY = 32
"""Drafts and offers that their means look back on."""

_ASKING_MEMORY = 8
_ASKING_SHARE, _PARKED_SHARE = 0.01, 0.0025
"""While plain decoding runs ahead, asking sources may take the first share of the time, and while
sources are parked the second."""


class ModelWorth:
    """How many passes of a draft model pay, by how often it was right and what a pass brings.

    Where free sources join its drafts, they add tokens that it does not know.
    acceptance: how often the id at each depth was right.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self._rows_per_pass = 1.0
        self._added = 0.0

    def best(self, costs: LearnedCosts, most: int, *, steps: int | None = None) -> Plan:
        """The number of passes, from 1 to `most`, with the best expected rate.

        steps: the number to take, if it is given; fewer only where `most` is less.
        """
        fixed = None if steps is None else min(steps, most)
        return self._best(costs, self.acceptance.probabilities(fixed or most), fixed)

    def is_hopeless(self, costs: LearnedCosts) -> bool:
        """Whether the model would not pay on this machine even if it were nearly always right."""
        return self._best(costs, [_HOPE] * MAX_DRAFT).rate * costs.plain <= 1.0

    def learn(self, passes: int, right: int, *, known: int, rows: int, added: int = 0) -> None:
        """A draft of so many passes had the first `right` of the `known` ids that came next.

        rows: how many ids were worth verifying. added: how many more were accepted, because free
        sources joined the draft.
        """
        self.acceptance.observe(min(known, max(passes, right)), right)
        self._rows_per_pass += (rows / passes - self._rows_per_pass) / _MEMORY
        self._added += (added - self._added) / _MEMORY

    def _best(
        self, costs: LearnedCosts, probabilities: Sequence[float], fixed: int | None = None
    ) -> Plan:
        verification = costs.verification(2 * len(probabilities))
        drafts = costs.draft_times(len(probabilities))
        best, tokens, reached = Plan(0, 0.0), 1.0 + self._added, 1.0
        for passes, (probability, draft) in enumerate(zip(probabilities, drafts, strict=True), 1):
            reached *= probability
            tokens += reached
            # In some rounds nothing of a draft is worth a row, so that less than one a pass is
            # verified in the mean. But whatever is accepted had a row.
            proposed = max(passes * self._rows_per_pass, tokens - 1.0 - self._added)
            rate = tokens / (verification.expected_verify(1.0 + proposed) + draft)
            if passes == fixed or (fixed is None and rate > best.rate):
                best = Plan(passes, rate, tokens)
        return best


class OfferWorth:
    """What the free sources' offers are worth: whether waiting for them beats running ahead.

    A round that runs ahead cannot propose anything, because its pass has begun in the round before.
    So waiting for an offer costs the overlap of host and device in every round. What is kept is the
    mean worth of the last offers, in plain passes, and the mean time of asking for one.
    """

    def __init__(self) -> None:
        self._worth = 0.05
        self._asking = 0.0

    @property
    def pays(self) -> bool:
        """Whether waiting for the next offer is expected to pay."""
        return self._worth > 0

    def learn(self, plan: Plan, *, plain: float, overlap: float, hidden: float = 0.0) -> None:
        """The sources made an offer, of which `plan` would be proposed; a plan of 0 ids for none.

        It is worth the passes that it saves. Without one the round loses the overlap.
        plain, hidden: as of `Allowance.account`.
        """
        unseen = hidden / plain
        worth = -overlap - unseen
        if plan.length:
            worth = plan.tokens * (1.0 - unseen - 1.0 / (plan.rate * plain))
        self._worth += (worth - self._worth) / _MEMORY

    def rounds_between(self, seconds: float, *, plain: float, parked: bool = False) -> int:
        """After how many plain rounds to ask again, now that asking has taken `seconds`."""
        self._asking += (seconds - self._asking) / _ASKING_MEMORY
        return round(self._asking / ((_PARKED_SHARE if parked else _ASKING_SHARE) * plain))


@dataclass(slots=True, kw_only=True)
class Course:
    """What is learned in the course of one request, about its text and whoever reads its events.

    allowance: what drafting may lose. offers: what those of this text are worth. parking: whether
    drafts of it have been worth anything lately. hidden: how many seconds of a plain pass are
    computed while the events are used, so that nobody waits for them; None where that is not known.
    """

    allowance: Allowance
    offers: OfferWorth = field(default_factory=OfferWorth)
    parking: Parking = field(default_factory=Parking)
    hidden: float | None = None


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """What is known of one machine, one target and one draft model; it holds nothing of any text.

    Every part keeps its own state and is updated by the planners of the requests that share it.
    model_trials, long_drafts, plain_timings: when a draft model that does not pay is tried, a draft
    is made longer than expected to be best, and a round has no draft so that it can be timed.
    busy: seconds of all rounds so far. latest: the course of the request that began last.
    """

    costs: LearnedCosts
    model: ModelWorth = field(default_factory=ModelWorth)
    model_trials: Trials = field(default_factory=lambda: Trials(16, at_once=True))
    long_drafts: Trials = field(default_factory=lambda: Trials(8))
    plain_timings: Trials = field(default_factory=lambda: Trials(32, 256))
    budget: DraftBudget = field(default_factory=DraftBudget)
    busy: float = 0.0
    latest: Course | None = None

    def begin(self, tokens: int) -> Course:
        """The course of a request for at most `tokens` tokens; it starts like the latest one."""
        before = self.latest
        if before is None:
            course = Course(allowance=Allowance(self.budget, tokens))
        else:
            course = Course(
                allowance=Allowance(self.budget, tokens, before.allowance),
                offers=copy(before.offers),
                parking=copy(before.parking),
                hidden=before.hidden,
            )
        self.latest = course
        return course

    @classmethod
    def given(cls, costs: Costs, model: ModelWorth | None = None) -> Knowledge:
        """What is known where costs are given. model: what is known of the draft model."""
        times = [time + costs.host * (n > 0) for n, time in enumerate(costs.rows)]
        rows = PassTimes(times, weight=1)
        drafts = PassTimes([n * costs.draft_pass for n in range(1, MAX_DRAFT + 1)], weight=1)
        return cls(costs=LearnedCosts(rows, drafts), model=model or ModelWorth())

    def trial_is_due(self, best: Plan) -> bool:
        """Whether a draft model is to be tried that is not expected to pay.

        best: what is expected of it.
        """
        trials, costs = self.model_trials, self.costs
        if best.rate * costs.plain > 1.0 or not trials.is_due:
            return False
        return trials.is_overdue or not self.model.is_hopeless(costs)

    def why_plain(self) -> str | None:
        """One line for the user if most rounds were plain decoding; None otherwise."""
        plain, rounds = self.costs.plain_rounds, self.budget.rounds
        if plain <= rounds / 2:
            return None
        row = self.costs.rows(2) / self.costs.plain
        return (
            f"auto: {plain} of {rounds} rounds were plain decoding, drafting was "
            f"not expected to pay (verifying 2 rows takes {row:.2f} plain passes)"
        )
