"""How many passes of a draft model pay, by how often it was right and how much a pass brings."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.cost.expected_gain import Plan
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.estimates import Acceptance
from tokalign.runtime.draft_length.learned_costs import LearnedCosts

_HOPE = 0.95
"""A draft model is hopeless if it would not pay even with ids that are right this often."""

_MEMORY = 32
"""Drafts that the mean number of rows per pass looks back on."""


class ModelWorth:
    """What is known of a draft model's proposals.

    acceptance: how often the id at each depth was right.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self._rows_per_pass = 1.0

    def best(self, costs: LearnedCosts, most: int) -> Plan:
        """The number of passes, from 1 to `most`, with the best expected rate."""
        return self._best(costs, self.acceptance.probabilities(most))

    def is_hopeless(self, costs: LearnedCosts) -> bool:
        """Whether the model would not pay on this machine even if it were nearly always right."""
        return self._best(costs, [_HOPE] * MAX_DRAFT).rate * costs.plain <= 1.0

    def learn(self, passes: int, right: int, *, known: int, rows: int) -> None:
        """A draft of so many passes had the first `right` of the `known` ids that came next.

        rows: what the target computed for it besides its own last id. That is the ids worth
        verifying, and once more those that were accepted beside the first chain.
        """
        self.acceptance.observe(min(known, max(passes, right)), right)
        self._rows_per_pass += (rows / passes - self._rows_per_pass) / _MEMORY

    def _best(self, costs: LearnedCosts, probabilities: Sequence[float]) -> Plan:
        verification = costs.verification(2 * len(probabilities))
        drafts = costs.draft_times(len(probabilities))
        best, tokens, reached = Plan(0, 0.0), 1.0, 1.0
        for passes, (probability, draft) in enumerate(zip(probabilities, drafts, strict=True), 1):
            reached *= probability
            tokens += reached
            rows = 1 + max(1, round(passes * self._rows_per_pass))
            rate = tokens / (verification.verify(rows) + draft)
            if rate > best.rate:
                best = Plan(passes, rate, tokens)
        return best
