"""What the draft length controller has learned, over all requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokalign.cost.expected_gain import Plan
from tokalign.runtime.draft_length.draft_budget import DraftBudget
from tokalign.runtime.draft_length.learned_costs import LearnedCosts
from tokalign.runtime.draft_length.model_worth import ModelWorth
from tokalign.runtime.draft_length.offer_worth import OfferWorth
from tokalign.runtime.draft_length.source_trust import SourceTrust
from tokalign.runtime.draft_length.trials import LongDrafts, ModelTrials


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
            f"not expected to pay (verifying a second row takes {row:.2f} plain passes)"
        )
