"""What recorded proposals would be worth under any cost curve: the loop on a clock of its own.

A trace plays both the drafters and the target. Passes cost what the curve says, and nothing else
takes time. The loop and the draft length controller are the ones that decode, so their decisions
are the real ones; what a machine does besides (heat, other programs) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tokalign.cost.curve import CostCurve
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.recorded_proposals import (
    WRONG,
    ProposalTrace,
    TracedText,
)
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.context import Context
from tokalign.runtime.draft.fixed_order import FirstOf
from tokalign.runtime.draft_length.controller import DraftLengthController
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.estimates import PassTimes
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.learned_costs import LearnedCosts
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tokenizer.vocabulary import TargetId

ASSUMED_DRAFT = 0.1
"""A pass of a draft model of a tenth of the target's bytes, where passes are bound by memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Speed-ups against plain decoding under one curve.

    fixed: by draft length (passes of a draft model, ids of a free source), 0 is plain. auto: of the
    gain controller. best: the fixed length with the highest speed-up, in hindsight.
    """

    fixed: Mapping[int, float]
    auto: float

    @property
    def best(self) -> int:
        return max(self.fixed, key=self.fixed.__getitem__)


class SimulatedClock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordedDrafter:
    """A drafter whose proposals were recorded; the id at index i of a text is i.

    fixed: how many passes to take, or ids to propose; None leaves it to the controller.
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
        return self.draft(context, steps=limit if self._fixed is None else self._fixed, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
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
    """The target: accepts what came in the text, and takes the time the curve says."""

    def __init__(self, length: int, costs: Costs, clock: SimulatedClock) -> None:
        self._replay = ReplayVerifier([TargetId(i) for i in range(length)])
        self._costs, self._clock = costs, clock
        self._ahead = False

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        verdict = self._replay.verify(context, proposal)
        continues = self._ahead and not proposal.tree
        if self._ahead and not continues:
            self._clock.now += self._costs.verify(1)  # a pass that was begun for nothing
        self._clock.now += self._costs.verify(verdict.rows)
        if not (continues and proposal.run_ahead):
            self._clock.now += self._costs.host
        self._ahead = proposal.run_ahead
        return verdict


def project(
    trace: ProposalTrace,
    costs: Costs,
    *,
    knowledge: Callable[[], Knowledge] | None = None,
    lengths: Sequence[int] | None = None,
) -> Projection:
    """Replay a trace under `costs`: every fixed length, and the draft length controller.

    knowledge: what the controller begins with; the costs themselves by default. lengths: all up to
    the longest recorded by default.
    """
    if lengths is None:
        lengths = range(1, min(16, trace.longest) + 1)
    plain = trace.tokens * costs.verify(1)
    make_knowledge = knowledge or (lambda: knowledge_of(costs, trace))
    return Projection(
        fixed={0: 1.0} | {k: plain / _fixed_time(trace, costs, k) for k in lengths if k},
        auto=plain / _auto_time(trace, costs, make_knowledge()),
    )


def costs_under(curve: CostCurve, trace: ProposalTrace, *, draft_pass: float | None) -> Costs:
    """What a curve says of the contexts of a trace, in plain passes.

    draft_pass: of the draft model, in plain passes; None for what the curve says, `ASSUMED_DRAFT`
    where it says nothing. Recorded host time is left out: it is another machine's.
    """
    middle = [text.given + (text.length - text.given) // 2 for text in trace.texts]
    context = sorted(middle)[len(middle) // 2] if middle else 0
    rows = curve.rows_at(context)
    known = curve.draft_pass_at(context)
    if draft_pass is None:
        draft_pass = ASSUMED_DRAFT if known is None else known / rows[0]
    return Costs(
        rows=tuple(time / rows[0] for time in rows),
        draft_pass=draft_pass,
        host=curve.host / rows[0],
    )


def knowledge_of(costs: Costs, trace: ProposalTrace) -> Knowledge:
    """A controller's knowledge where the curve was measured."""
    with_model = any(_is_model(trace, name) for name in trace.drafters)
    drafts = [n * max(costs.draft_pass, 1e-9) for n in range(1, MAX_DRAFT + 1)]
    return Knowledge(
        costs=LearnedCosts(
            PassTimes([t + costs.host for t in costs.rows], weight=4),
            PassTimes(drafts, weight=4) if with_model else None,
            host=costs.host,
        )
    )


def _fixed_time(trace: ProposalTrace, costs: Costs, length: int) -> float:
    """Time of decoding all texts at a fixed length; free sources are asked before a model."""
    clock = SimulatedClock()
    order = sorted(trace.drafters, key=lambda name: _is_model(trace, name))
    for text in trace.texts:
        drafters = [RecordedDrafter(name, text, costs, clock, length) for name in order]
        _run(text, FirstOf(drafters), TimedReplay(text.length, costs, clock))
    return clock.now


def _auto_time(trace: ProposalTrace, costs: Costs, knowledge: Knowledge) -> float:
    clock = SimulatedClock()
    models = [name for name in trace.drafters if _is_model(trace, name)]
    for text in trace.texts:
        drafters = {name: RecordedDrafter(name, text, costs, clock) for name in trace.drafters}
        free = [drafters[name] for name in trace.drafters if name not in models]
        controller = DraftLengthController(
            knowledge,
            TimedReplay(text.length, costs, clock),
            free=FirstOf(free) if free else None,
            model=drafters[models[0]] if models else None,
            clock=clock,
        )
        _run(text, controller, controller)
    return clock.now


def _run(text: TracedText, drafter: Drafter, verifier: TimedReplay | DraftLengthController) -> None:
    context = Context([TargetId(i) for i in range(text.given)])
    limits = Limits(max_tokens=text.length - text.given)
    for _ in decode(context, drafter, verifier, limits=limits):
        pass


def _is_model(trace: ProposalTrace, name: str) -> bool:
    """Whether a drafter spends passes."""
    return any(one.passes for text in trace.texts for one in text.proposals[name].values())
