"""Several drafters in a fixed order, asked one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Proposal


class FirstOf:
    """Takes the proposal of the first drafter that has one.

    It is there for comparison with `Hybrid`.
    Source: DictSpec's hybrid (dictionary first, then prompt lookup).
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        asked = []
        for drafter in self._drafters:
            asked.append(drafter.propose(context, limit))
            if asked[-1].tree:
                break
        return _with_all_costs(asked)


def _with_all_costs(asked: Sequence[Proposal]) -> Proposal:
    """The last proposal, with the costs of all drafters that were asked."""
    if not asked:
        return Proposal()
    counts: Counter[str] = Counter()
    for proposal in asked:
        counts.update(proposal.counts)
    return replace(
        asked[-1],
        draft_passes=sum(proposal.draft_passes for proposal in asked),
        model_seconds=sum(proposal.model_seconds for proposal in asked),
        translation_seconds=sum(proposal.translation_seconds for proposal in asked),
        counts=counts,
        run_ahead=all(proposal.run_ahead for proposal in asked),
    )
