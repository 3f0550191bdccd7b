"""What a trace of proposals is worth under any cost curve, by replaying it on a simulated clock.

Passes take what the curve says, and nothing else takes time. The decisions are those of the real
draft length controller. What else happens on a machine (heat, other programs) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokalign.cost.curve import CostCurve
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.recorded_proposals import ProposalTrace, TracedText
from tokalign.evaluate.simulated import RecordedDrafter, SimulatedClock, TimedReplay, ids_of
from tokalign.runtime.context import Context
from tokalign.runtime.draft.fixed_order import FirstOf
from tokalign.runtime.draft_length.controller import DraftLengthController
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.estimates import PassTimes
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.learned_costs import LearnedCosts
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode

ASSUMED_DRAFT = 0.1
"""Time of a draft pass in plain passes, where it is unknown.

Passes are bound by memory, so this is a draft model with a tenth of the target's bytes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Speed-ups against plain decoding under one curve.

    fixed: by draft length (passes of a draft model, ids of a free source); 0 is plain decoding.
    auto: of the draft length controller.
    """

    fixed: Mapping[int, float]
    auto: float

    @property
    def best(self) -> int:
        """The fixed draft length with the highest speed-up, in hindsight."""
        return max(self.fixed, key=self.fixed.__getitem__)


def project(
    trace: ProposalTrace,
    costs: Costs,
    *,
    knowledge: Callable[[], Knowledge] | None = None,
    lengths: Sequence[int] = range(1, MAX_DRAFT + 1),
) -> Projection:
    """Replay a trace under `costs`, with every fixed length and with the draft length controller.

    knowledge: what the controller begins with; by default it knows the costs.
    lengths: those to project; longer ones than the trace holds are left out.
    """
    plain = trace.tokens * costs.verify(1)
    known = knowledge_of(costs, trace) if knowledge is None else knowledge()
    fixed = {n: plain / _fixed_time(trace, costs, n) for n in lengths if 0 < n <= trace.longest}
    return Projection(fixed={0: 1.0} | fixed, auto=plain / _auto_time(trace, costs, known))


def costs_under(curve: CostCurve, trace: ProposalTrace, *, draft_pass: float | None) -> Costs:
    """The costs that a curve gives for the contexts of a trace, in plain passes.

    draft_pass: of the draft model, in plain passes; None for the curve's own, or `ASSUMED_DRAFT` if
    it has none. Recorded host time is left out, because it is that of another machine.
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
    """What the controller begins with where these costs were measured."""
    with_model = any(_is_model(trace, name) for name in trace.drafters)
    drafts = [n * max(costs.draft_pass, 1e-9) for n in range(1, MAX_DRAFT + 1)]
    return Knowledge(
        costs=LearnedCosts(
            PassTimes([time + costs.host for time in costs.rows], weight=4),
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
    """Time of decoding all texts, one after another, with the draft length controller."""
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


def _run(text: TracedText, drafter: Drafter, verifier: Verifier) -> None:
    limits = Limits(max_tokens=text.length - text.given)
    for _ in decode(Context(ids_of(text.given)), drafter, verifier, limits=limits):
        pass


def _is_model(trace: ProposalTrace, name: str) -> bool:
    """Whether a drafter spends passes."""
    return any(one.passes for text in trace.texts for one in text.proposals[name].values())
