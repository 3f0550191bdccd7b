"""What a trace of proposals is worth under any cost curve, by replaying it on a simulated clock.

The trace plays the drafters and the target: passes take what the curve says, and nothing else takes
time. The loop and the draft length controller around these parts are the real ones. What else
happens on a machine (heat, other programs) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tokalign.cost.curve import ASSUMED_DRAFT, CostCurve
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.recorded_proposals import WRONG, ProposalTrace, TracedText
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.controller import DraftLengthController
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tokenizer.vocabulary import TargetId


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
    it has none. A given or assumed one holds for trees too. Recorded host time is left out, because
    it is that of another machine.
    """
    middle = [text.given + (text.length - text.given) // 2 for text in trace.texts]
    context = sorted(middle)[len(middle) // 2] if middle else 0
    costs = curve.costs_at(context)
    if draft_pass is None and curve.draft_pass_at(context) is not None:
        return costs
    given = ASSUMED_DRAFT if draft_pass is None else draft_pass
    return replace(costs, draft_pass=given, tree_pass=None)


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
        _run(text, FirstOf(drafters), _replay(text, costs, clock))
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
            _replay(text, costs, clock),
            free=FirstOf(free) if free else None,
            model=drafters[models[0]] if models else None,
            clock=clock,
        )
        _run(text, controller, controller)
    return clock.now


def _replay(text: TracedText, costs: Costs, clock: SimulatedClock) -> TimedVerifier:
    """A target that goes on as the text did, and takes the time that the costs say."""
    return TimedVerifier(ReplayVerifier(ids_of(text.length)), costs, clock)


def _run(text: TracedText, drafter: Drafter, verifier: Verifier) -> None:
    limits = Limits(max_tokens=text.length - text.given)
    for _ in decode(Context(ids_of(text.given)), drafter, verifier, limits=limits):
        pass


def _is_model(trace: ProposalTrace, name: str) -> bool:
    """Whether a drafter spends passes."""
    return any(one.passes for text in trace.texts for one in text.proposals[name].values())


class FirstOf(Drafter):
    """Takes the proposal of the first drafter that has one."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        for drafter in self._drafters:
            proposal = drafter.propose(context, limit)
            if proposal.tree:
                return proposal
        return Proposal()


class SimulatedClock:
    """A clock that shows the time `now`; what takes time adds to it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def ids_of(length: int) -> list[TargetId]:
    """The ids that stand for a traced text: at index i the id i."""
    return [TargetId(i) for i in range(length)]


class RecordedDrafter(Drafter):
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
        grown = recorded.tree.chain_length < len(recorded.tree)
        self._clock.now += self._costs.drafting(recorded.passes, tree=grown)
        tree = recorded.tree.head(limit)
        ids = tuple(i if i == WRONG else TargetId(position + i) for i in tree.ids)
        return Proposal(tree=replace(tree, ids=ids), draft_passes=recorded.passes)


class TimedVerifier:
    """A verifier whose passes take the time that the costs say."""

    def __init__(self, verifier: Verifier, costs: Costs, clock: SimulatedClock) -> None:
        self._verifier = verifier
        self._costs, self._clock = costs, clock
        self._runs_ahead = False

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        verdict = self._verifier.verify(context, proposal)
        costs, uses_pass = self._costs, self._runs_ahead and not proposal.tree
        if self._runs_ahead and not uses_pass:
            self._clock.now += costs.verify(1)  # for the pass that has begun for nothing
        self._clock.now += costs.verify(verdict.rows)
        if not (uses_pass and proposal.run_ahead):
            self._clock.now += costs.host
        self._runs_ahead = proposal.run_ahead
        return verdict
