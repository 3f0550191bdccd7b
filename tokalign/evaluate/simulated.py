"""Decoding on a simulated clock: a trace plays the drafters and the target, a curve sets the times.

The loop and the draft length controller around these parts are the real ones. `project.py` uses
them to say what a trace is worth under a cost curve.
"""

from __future__ import annotations

from dataclasses import replace

from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.recorded_proposals import WRONG, TracedText
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tokenizer.vocabulary import TargetId


class SimulatedClock:
    """A clock that shows the time `now`; whoever takes time adds it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def ids_of(length: int) -> list[TargetId]:
    """The ids that stand for a traced text: at index i the id i."""
    return [TargetId(i) for i in range(length)]


class RecordedDrafter:
    """Proposes what a drafter proposed when the trace was recorded.

    fixed: how many passes to take, or ids to propose; None leaves that to the caller of `draft`.
    """

    def __init__(
        self,
        name: str,
        text: TracedText,
        costs: Costs,
        clock: SimulatedClock,
        fixed: int | None = None,
    ) -> None:
        self._name, self._text, self._costs, self._clock = name, text, costs, clock
        self._fixed = fixed

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        return self.draft(context, steps=limit if self._fixed is None else self._fixed, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """See `draft_length.controller.SteppedDrafter`."""
        position = len(context.ids)
        recorded = self._text.proposal(self._name, position)
        if recorded is None or not steps or not limit:
            return Proposal()
        recorded = recorded.at_most(steps)
        self._clock.now += recorded.passes * self._costs.draft_pass
        tree = recorded.tree.head(limit)
        ids = tuple(i if i == WRONG else TargetId(position + i) for i in tree.ids)
        return Proposal(tree=replace(tree, ids=ids), draft_passes=recorded.passes)


class TimedReplay:
    """A target that goes on as the text did, and takes the time that the costs say."""

    def __init__(self, length: int, costs: Costs, clock: SimulatedClock) -> None:
        self._replay = ReplayVerifier(ids_of(length))
        self._costs, self._clock = costs, clock
        self._runs_ahead = False

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        verdict = self._replay.verify(context, proposal)
        costs, uses_pass = self._costs, self._runs_ahead and not proposal.tree
        if self._runs_ahead and not uses_pass:
            self._clock.now += costs.verify(1)  # for the pass that has begun for nothing
        self._clock.now += costs.verify(verdict.rows)
        if not (uses_pass and proposal.run_ahead):
            self._clock.now += costs.host
        self._runs_ahead = proposal.run_ahead
        return verdict
