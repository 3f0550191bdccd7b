"""The controller on a clock: what it times, whom it asks, and that no pass is thrown away."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from recorded_worlds import a_world, costs_of

from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.project import (
    RecordedDrafter,
    SimulatedClock,
    TimedVerifier,
    ids_of,
    knowledge_of,
)
from tokalign.evaluate.recorded_proposals import TracedText
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.context import Context
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft_length.acceptance import Acceptance
from tokalign.runtime.draft_length.controller import DraftLengthController
from tokalign.runtime.draft_length.knowledge import Knowledge, ModelWorth
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.runtime.rounds import Event
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Device:
    """Computes passes one after another while the host goes on; plays target and clock at once."""

    def __init__(self, rows: list[float], host: float, uneven: Random | None = None) -> None:
        self.now = self.free_at = 0.0
        self._rows, self._host, self._uneven = rows, host, uneven
        self._under_way: float | None = None

    def __call__(self) -> float:
        return self.now

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        self.now += self._host
        rows = len(proposal.tree) + 1
        done = self._under_way if rows == 1 else None
        done = self._start(rows) if done is None else done
        self._under_way = self._start(1) if proposal.run_ahead else None
        self.now = max(self.now, done)
        return Verdict(ids=(TargetId(0),), path=(), rows=rows)

    def _start(self, rows: int) -> float:
        takes = self._rows[rows - 1] * (1.0 + (self._uneven.random() if self._uneven else 0.0))
        self.free_at = max(self.free_at, self.now) + takes
        return self.free_at


class Never(Drafter):
    """A source that never has anything, at a price."""

    def __init__(self, device: Device, price: float) -> None:
        self._device, self._price = device, price
        self.asked = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        self._device.now += self._price
        self.asked += 1
        return Proposal()


class Guessing(Drafter):
    """Proposes one tree everywhere, whether it is asked as a source or as a draft model."""

    def __init__(self, tree: TokenTree[TargetId]) -> None:
        self._tree = tree

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(tree=self._tree)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        return Proposal(tree=self._tree, draft_passes=steps)


class Watched(Drafter):
    """Keeps what a controller proposes."""

    def __init__(self, controller: DraftLengthController) -> None:
        self._controller = controller
        self.proposals: list[Proposal] = []
        self.verify = controller.verify

    def propose(self, context: Context, limit: int) -> Proposal:
        self.proposals.append(self._controller.propose(context, limit))
        return self.proposals[-1]


def run(controller: DraftLengthController | Watched, tokens: int, device: Device) -> list[Event]:
    limits = Limits(max_tokens=tokens)
    return list(decode(Context([TargetId(0)]), controller, controller, limits=limits, clock=device))


def test_plain_rounds_run_ahead_and_are_timed_from_verdict_to_verdict() -> None:
    """10 ms on the device, 3 ms on the host: 10 ms a token, not 13; the sources are asked less."""
    device = Device([0.010, 0.012], host=0.003)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.013, 0.015], weight=0)))
    source = Never(device, price=0.0002)
    watched = Watched(DraftLengthController(knowledge, device, free=source, clock=device))
    run(watched, 600, device)
    ahead = [proposal.run_ahead for proposal in watched.proposals]
    assert sum(ahead[200:-1]) > 0.95 * len(ahead[200:-1])
    assert knowledge.costs.plain == pytest.approx(0.010, rel=0.02)
    assert device.now < 600 * 0.010 * 1.05
    assert source.asked < 500


def test_plain_rounds_of_uneven_length_pay_a_loss_back() -> None:
    """Their mean is a little too low, because other programs make rounds slow but never fast."""
    device = Device([0.010, 0.012], host=0.001, uneven=Random(0))
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.010, 0.012], weight=4)))
    source = Never(device, price=0.0)
    knowledge.budget.begin(32)
    knowledge.budget.account(3.0, 1, expected=3.0, plain=1.0)
    for _ in range(14):
        assert knowledge.budget.is_spent
        run(DraftLengthController(knowledge, device, free=source, clock=device), 32, device)
        if not knowledge.budget.is_spent:
            break
    assert not knowledge.budget.is_spent


def test_nothing_is_proposed_where_nothing_of_all_sources_together_pays() -> None:
    """The draft model's whole tree was, when the tree of all sources came out empty."""
    unlikely = TokenTree.chain([TargetId(8)], "source", [0.01])
    leaves = TokenTree(tuple(map(TargetId, range(1, 8))), (-1,) * 7, ("draft",) * 7, (0.01,) * 7)
    device = Device([0.010 * n for n in range(1, 33)], host=0.0)
    drafts = PassTimes([0.0001 * n for n in range(1, 17)], weight=4)
    knowledge = Knowledge(
        costs=LearnedCosts(PassTimes([0.010, 0.011], weight=0), drafts),
        model=ModelWorth(Acceptance(start=0.9)),
    )
    hybrid = Hybrid([], costs=knowledge.costs.for_ranking)
    controller = DraftLengthController(
        knowledge,
        device,
        free=Guessing(unlikely),
        model=Guessing(leaves),
        join=hybrid.join,
        clock=device,
    )
    watched = Watched(controller)
    run(watched, 20, device)
    asked = [proposal for proposal in watched.proposals if proposal.draft_passes]
    assert asked
    assert not any(proposal.tree for proposal in asked)


def test_a_pass_under_way_is_never_thrown_away() -> None:
    """A round that ran ahead is followed by one that proposes nothing."""
    trace, truth = a_world(9, 0.45, model=True, offered=0.5), costs_of("m2-ultra", host=0.05)
    ran_ahead = 0
    for text in trace.texts[:2]:
        for before, after in pairwise(proposals_in(text, truth, knowledge_of(truth, trace))):
            assert not (before.run_ahead and after.tree)
            ran_ahead += before.run_ahead
    assert ran_ahead


def proposals_in(text: TracedText, truth: Costs, knowledge: Knowledge) -> list[Proposal]:
    clock = SimulatedClock()
    controller = DraftLengthController(
        knowledge,
        TimedVerifier(ReplayVerifier(ids_of(text.length)), truth, clock),
        model=RecordedDrafter("it", text, truth, clock),
        clock=clock,
    )
    watched, context = Watched(controller), Context(ids_of(text.given))
    for _ in decode(context, watched, controller, limits=Limits(max_tokens=300)):
        pass
    return watched.proposals


class SpiedTimes(PassTimes):
    """Keeps what it was told, and believes nothing of it."""

    def __init__(self, prior: list[float]) -> None:
        super().__init__(prior, weight=4)
        self.observed: list[tuple[int, float]] = []

    def observe(self, count: int, seconds: float) -> None:
        self.observed.append((count, seconds))


class SpiedModel(ModelWorth):
    """Keeps how many rows each draft cost."""

    def __init__(self) -> None:
        super().__init__(Acceptance(start=0.9))
        self.rows: list[int] = []

    def learn(self, passes: int, right: int, *, known: int, rows: int, added: int = 0) -> None:
        self.rows.append(rows)


class Alternating(Drafter):
    """A draft model whose chain of two is wrong; every other time an id beside it is right."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock, self.drafts = clock, 0

    def propose(self, context: Context, limit: int) -> Proposal:
        return self.draft(context, steps=limit, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        self.drafts += 1
        self._clock.now += 0.25 if self.drafts > 1 else 9.0  # the first one reads the prompt
        ids = TargetId(8), TargetId(8), TargetId(self.drafts % 2)
        return Proposal(tree=TokenTree(ids, (-1, 0, -1), ("draft",) * 3), draft_passes=steps)


class RowsTakeTime:
    """Goes on with 1, and takes one second per row."""

    def __init__(self, clock: SimulatedClock, length: int) -> None:
        self._replay, self._clock = ReplayVerifier([TargetId(1)] * length), clock
        self.drafted: list[Verdict] = []

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        verdict = self._replay.verify(context, proposal)
        self._clock.now += verdict.rows
        if proposal.tree:
            self.drafted.append(verdict)
        return verdict


def test_rows_are_learned_as_the_target_computed_them() -> None:
    clock = SimulatedClock()
    target, drafts = RowsTakeTime(clock, 60), SpiedTimes([0.01] * 16)
    times, model = SpiedTimes([1.0] * 9), SpiedModel()
    knowledge = Knowledge(costs=LearnedCosts(times, drafts), model=model)
    controller = DraftLengthController(knowledge, target, model=Alternating(clock), clock=clock)
    limits = Limits(max_tokens=40)
    for _ in decode(Context([TargetId(1)]), controller, controller, limits=limits):
        if knowledge.budget.is_spent:
            break
    rows = [verdict.rows for verdict in target.drafted]
    assert set(rows) == {4}
    # A round takes what its rows took; the first draft, which reads the prompt, is not timed.
    assert times.observed[-len(rows) + 1 :] == [(count, float(count)) for count in rows[1:]]
    assert drafts.observed
    assert {seconds for _, seconds in drafts.observed} == {0.25}
    assert set(model.rows) == {3}
