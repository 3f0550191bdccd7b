"""What the draft length controller has learned, over all requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokalign.cost.expected_gain import Plan
from tokalign.runtime.draft_length.acceptance import Acceptance, SourceTrust
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.learned_costs import LearnedCosts
from tokalign.runtime.draft_length.overrides import DraftBudget, LongDrafts, ModelTrials

_HOPE = 0.95
"""A draft model is hopeless if it would not pay even with ids that are right this often."""

_MEMORY = 32
"""Drafts and offers that their means look back on."""

_ASKING_MEMORY = 8
_ASKING_SHARE = 0.01
"""While plain decoding runs ahead, asking sources may take this share of the time."""


class ModelWorth:
    """How many passes of a draft model pay, by how often it was right and what a pass brings.

    Where free sources join its drafts, they add tokens that it does not know.
    acceptance: how often the id at each depth was right.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self._rows_per_pass = 1.0
        self._added = 0.0

    def best(self, costs: LearnedCosts, most: int) -> Plan:
        """The number of passes, from 1 to `most`, with the best expected rate."""
        return self._best(costs, self.acceptance.probabilities(most))

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

    def _best(self, costs: LearnedCosts, probabilities: Sequence[float]) -> Plan:
        verification = costs.verification(2 * len(probabilities))
        drafts = costs.draft_times(len(probabilities))
        best, tokens, reached = Plan(0, 0.0), 1.0 + self._added, 1.0
        for passes, (probability, draft) in enumerate(zip(probabilities, drafts, strict=True), 1):
            reached *= probability
            tokens += reached
            rows = 1 + max(1, round(passes * self._rows_per_pass))
            rate = tokens / (verification.verify(rows) + draft)
            if rate > best.rate:
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

    def learn(self, plan: Plan, *, plain: float, overlap: float) -> None:
        """The sources made an offer, of which `plan` would be proposed; a plan of 0 ids for none.

        It is worth the passes that it saves. Without one the round loses the overlap.
        """
        worth = -overlap
        if plan.length:
            worth = plan.tokens - plan.tokens / (plan.rate * plain)
        self._worth += (worth - self._worth) / _MEMORY

    def rounds_between(self, seconds: float, *, plain: float) -> int:
        """After how many plain rounds to ask again, now that asking has taken `seconds`."""
        self._asking += (seconds - self._asking) / _ASKING_MEMORY
        return round(self._asking / (_ASKING_SHARE * plain))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of one machine, one target and one draft model; it holds nothing of any text.

    Every part keeps its own state and is updated by the controllers of the requests that share it.
    """

    costs: LearnedCosts
    model: ModelWorth = field(default_factory=ModelWorth)
    model_trials: ModelTrials = field(default_factory=ModelTrials)
    long_drafts: LongDrafts = field(default_factory=LongDrafts)
    trust: SourceTrust = field(default_factory=SourceTrust)
    offers: OfferWorth = field(default_factory=OfferWorth)
    budget: DraftBudget = field(default_factory=DraftBudget)

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
