"""What the draft length controller has learned, over all requests."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def model_may_be_tried(self, most: int) -> bool:
        """Whether a model that does not pay is to be tried again, with at most `most` passes."""
        trials = self.model_trials
        return trials.is_due and (trials.is_overdue or not self.model.is_hopeless(self.costs, most))

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
