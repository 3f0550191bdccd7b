"""What a trace of proposals is worth under any cost curve, by replaying it on a simulated clock.

The trace plays the drafters and the target: passes take what the curve says, and nothing else takes
time. The loop and the planner around these parts are the real ones. What else
happens on a machine (heat, other programs) is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from lab.recorded_proposals import WRONG, ProposalTrace, TracedText
from lab.round_costs import RoundCosts, in_plain_passes
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.cost import ASSUMED_DRAFT, CostCurve
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import MAX_DRAFT, MAX_IDS, LearnedCosts, PassTimes
from tokalign.runtime.draft.growth import Answer
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFT, ModelDrafter
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.rounds import Context, Drafter, Event, Proposal, Round, Verdict, Verifier
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Speed-ups against plain decoding under one curve.

    fixed: by draft length (passes of a draft model, ids of a free source); 0 is plain decoding.
    auto: of the planner.
    """

    fixed: Mapping[int, float]
    auto: float

    @property
    def best(self) -> int:
        """The fixed draft length with the highest speed-up, in hindsight."""
        return max(self.fixed, key=self.fixed.__getitem__)


def project(
    trace: ProposalTrace,
    costs: RoundCosts,
    *,
    knowledge: Callable[[], Knowledge] | None = None,
    lengths: Sequence[int] = range(1, MAX_DRAFT + 1),
) -> Projection:
    """Replay a trace under `costs`, with every fixed length and with the planner.

    knowledge: what the planner begins with; by default it knows the costs.
    lengths: those to project; longer ones than the trace holds are left out.
    """
    plain = trace.tokens * costs.verify(1)
    known = knowledge_of(costs, trace) if knowledge is None else knowledge()
    fixed = {n: plain / _fixed_time(trace, costs, n) for n in lengths if 0 < n <= trace.longest}
    return Projection(fixed={0: 1.0} | fixed, auto=plain / planned_time(trace, costs, known))


def costs_under(curve: CostCurve, *, draft_pass: float | None) -> RoundCosts:
    """The costs that a curve gives, in plain passes.

    draft_pass: of the draft model, in plain passes; None for the curve's own, or `ASSUMED_DRAFT` if
    it has none. A given or assumed one holds for trees too.
    """
    costs = in_plain_passes(curve)
    if draft_pass is None and curve.draft_pass is not None:
        return costs
    given = ASSUMED_DRAFT if draft_pass is None else draft_pass
    return replace(costs, draft_pass=given, tree_pass=None)


def knowledge_of(costs: RoundCosts, trace: ProposalTrace) -> Knowledge:
    """What the planner begins with where these costs were measured."""
    a_pass = max(costs.draft_pass, 1e-9) / (costs.rows[0] + costs.host)
    drafts = [n * a_pass for n in range(1, MAX_DRAFT + 1)]
    return Knowledge(
        costs=LearnedCosts(
            PassTimes([time + costs.host for time in costs.rows], weight=4), host=costs.host
        ),
        models={DRAFT: ModelKnowledge(PassTimes(drafts, weight=4))},
    )


def _fixed_time(trace: ProposalTrace, costs: RoundCosts, length: int) -> float:
    """Time of decoding all texts at a fixed length; free sources are asked before a model."""
    clock = SimulatedClock()
    order = sorted(_drafters(trace), key=lambda name: _is_model(trace, name))
    for text in trace.texts:
        drafters = [RecordedDrafter(name, text, costs, clock, length) for name in order]
        _run(text, FirstOf(drafters), costs, clock)
    return clock.now


def planned_time(
    trace: ProposalTrace,
    costs: RoundCosts,
    knowledge: Knowledge,
    *,
    jobs: int = 1,
    pause: Callable[[Round], float] = lambda _: 0.0,
) -> float:
    """Time of all rounds of all texts with the planner, without the pauses between them.

    jobs: so many texts take turns, a round each. pause: what the reader of a round takes.
    """
    clock, mixing, paused = SimulatedClock(), Mixing(), 0.0
    models = [name for name in _drafters(trace) if _is_model(trace, name)]

    def begin(text: TracedText) -> Iterator[Event]:
        sources = [RecordedSource(name, text) for name in _drafters(trace) if name not in models]
        free = TreeDrafter(sources, max_tokens=MAX_IDS, mixing=mixing)
        own = [RecordedDrafter(name, text, costs, clock) for name in models[:1]]
        return replayed(text, Controller(knowledge, free, *own), costs, clock)

    waiting = map(begin, trace.texts)
    running = deque(islice(waiting, jobs))
    while running:
        events = running.popleft()
        one = next((event for event in events if isinstance(event, Round)), None)
        running.extend(islice(waiting, 1) if one is None else [events])
        if one is not None:
            clock.now += pause(one)
            paused += pause(one)
    return clock.now - paused


def _run(text: TracedText, drafter: Drafter, costs: RoundCosts, clock: SimulatedClock) -> None:
    for _ in replayed(text, drafter, costs, clock):
        pass


def replayed(
    text: TracedText, drafter: Drafter, costs: RoundCosts, clock: SimulatedClock
) -> Iterator[Event]:
    """The rounds of a text: the target goes on as it did, and takes the time that costs say."""
    verifier = TimedVerifier(ReplayVerifier(ids_of(text.length)), costs, clock)
    limits = Limits(max_tokens=text.length - text.given)
    context = Context(ids_of(text.given))
    return iter(Decoding(context, drafter, verifier, limits=limits, clock=clock))


def _drafters(trace: ProposalTrace) -> list[str]:
    """Names of the drafters that were asked."""
    return sorted({name for text in trace.texts for name in text.proposals})


def _is_model(trace: ProposalTrace, name: str) -> bool:
    """Whether a drafter spends passes."""
    return any(one.passes for text in trace.texts for one in text.proposals[name].values())


class FirstOf(Drafter):
    """Takes the proposal of the first drafter that has one."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `rounds.Drafter`."""
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


class DelayedClock(SimulatedClock):
    """Other programs delay what takes time: each step takes a log-normal factor longer.

    sigma: of the factor's logarithm. undelayed: what the clock would show without them.
    """

    def __init__(self, sigma: float, random: Random) -> None:
        self._sigma, self._random = sigma, random
        self._now = self.undelayed = 0.0

    @property
    def now(self) -> float:
        """The time that it shows."""
        return self._now

    @now.setter
    def now(self, value: float) -> None:
        took = value - self._now
        self.undelayed += took
        self._now += took * self._random.lognormvariate(0.0, self._sigma)


def ids_of(length: int) -> list[TargetId]:
    """The ids that stand for a traced text: at index i the id i."""
    return [TargetId(i) for i in range(length)]


class RecordedDrafter(ModelDrafter):
    """Drafts what a drafter did when the trace was recorded, and proposes the first ids of it.

    length: passes or ids of a draft where the caller does not choose their number.
    """

    def __init__(
        self,
        name: str,
        text: TracedText,
        costs: RoundCosts,
        clock: SimulatedClock,
        length: int = MAX_DRAFT,
    ) -> None:
        self.passes = 0
        super().__init__(self, length, 0)
        self._name, self._text, self._costs, self._clock = name, text, costs, clock
        self._asked = length

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """See `ModelDrafter`. At the end of a text, too, so many passes are taken."""
        self._asked = steps
        return super().draft(context, steps=steps, limit=limit)

    def find(self, context: Context, steps: int) -> Proposal:
        """See `ModelDrafter`."""
        recorded = self._text.proposals.get(self._name, {}).get(len(context.ids))
        if recorded is None:
            return Proposal()
        recorded = recorded.at_most(self._asked)
        grown = recorded.tree.chain_length < len(recorded.tree)
        self._clock.now += self._costs.drafting(recorded.passes, tree=grown)
        self.passes += recorded.passes
        tree = placed(recorded.tree, len(context.ids))
        if not tree.probabilities:
            tree = replace(tree, probabilities=(*self._acceptance.probabilities(len(tree)),))
        return Proposal(tree=tree)

    def choose(self, tree: TokenTree[TargetId], limit: int) -> TokenTree[TargetId]:
        """See `ModelDrafter`."""
        return tree.head(limit)


class RecordedSource:
    """A free source that expects what it did when the trace was recorded (`mixing.Source`)."""

    def __init__(self, name: str, text: TracedText) -> None:
        self.name, self._text = name, text
        self._answer = Answer(EMPTY_TREE)

    def follow(self, ids: Sequence[TargetId]) -> int:
        """See `mixing.Source`."""
        recorded = self._text.proposals.get(self.name, {}).get(len(ids))
        tree = EMPTY_TREE if recorded is None else placed(recorded.tree, len(ids))
        if not tree.probabilities:  # mixing learns how often it is right
            tree = replace(tree, probabilities=(0.5,) * len(tree))
        self._answer = Answer(tree)
        return -1

    def advance(self, state: int, token: TargetId) -> int | None:
        """See `mixing.Source`."""
        following: int | None = self._answer.after(state, token)
        return following

    def expect(self, state: int) -> Sequence[tuple[TargetId, float]]:
        """See `mixing.Source`."""
        return self._answer.expect(state)


def placed(tree: TokenTree[TargetId], position: int) -> TokenTree[TargetId]:
    """A recorded tree with the ids of its text; every wrong one is another id of no text."""
    ids = [
        TargetId(-1 - index if token == WRONG else position + token)
        for index, token in enumerate(tree.ids)
    ]
    return replace(tree, ids=tuple(ids))


class TimedVerifier:
    """A verifier whose passes take the time that the costs say."""

    def __init__(self, verifier: Verifier, costs: RoundCosts, clock: SimulatedClock) -> None:
        self._verifier = verifier
        self._costs, self._clock = costs, clock
        self._runs_ahead = False

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `rounds.Verifier`."""
        verdict = self._verifier.verify(context, proposal)
        costs, uses_pass = self._costs, self._runs_ahead and not proposal.tree
        if self._runs_ahead and not uses_pass:
            self._clock.now += costs.verify(1)  # for the pass that has begun for nothing
        self._clock.now += costs.verify(verdict.rows)
        if not (uses_pass and proposal.run_ahead):
            self._clock.now += costs.host
        self._runs_ahead = proposal.run_ahead
        return verdict
