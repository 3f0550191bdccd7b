"""The planner on a clock: what it times, whom it asks, and that no pass is thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from recorded_worlds import a_world, costs_of
from scripted_models import ScriptedModel, ScriptedSource

from lab.project import RecordedDrafter, SimulatedClock, TimedVerifier, ids_of, knowledge_of
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft.knowledge import Course, Knowledge, ModelWorth
from tokalign.runtime.draft.learned_costs import Costs, LearnedCosts, PassTimes
from tokalign.runtime.draft.neural import Acceptance
from tokalign.runtime.draft.planner import Planner
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.rounds import Context, Drafter, Event, Proposal, Round, Verdict
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Device:
    """Computes passes one after another while the host goes on; plays target and clock at once."""

    def __init__(self, rows: list[float], host: float) -> None:
        self.now = self.free_at = 0.0
        self._rows, self._host = rows, host
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
        self.free_at = max(self.free_at, self.now) + self._rows[rows - 1]
        return self.free_at


class Watched(Drafter):
    """Keeps what a planner proposes."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.proposals: list[Proposal] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        self.proposals.append(self._planner.propose(context, limit))
        return self.proposals[-1]

    def observe(self, one: Round) -> None:
        self._planner.observe(one)


def run(drafter: Drafter, tokens: int, device: Device) -> list[Event]:
    limits = Limits(max_tokens=tokens)
    return list(decode(Context([TargetId(0)]), drafter, device, limits=limits, clock=device))


def test_plain_rounds_run_ahead_and_are_timed_from_round_to_round() -> None:
    """10 ms on the device, 3 ms on the host: 10 ms a token, not 13; the sources are asked less."""
    device = Device([0.010, 0.012], host=0.003)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.013, 0.015], weight=0)))

    def takes_time() -> None:
        device.now += 0.0002

    source = ScriptedSource(None, on_asked=takes_time)
    watched = Watched(Planner(knowledge, Hybrid([source]), clock=device))
    run(watched, 600, device)
    ahead = [proposal.run_ahead for proposal in watched.proposals]
    assert sum(ahead[200:-1]) > 0.95 * len(ahead[200:-1])
    assert knowledge.costs.plain == pytest.approx(0.010, rel=0.02)
    assert device.now < 600 * 0.010 * 1.05
    assert source.asked < 500


class CountedNoise:
    """Noise of no position that is known, and how often it was asked for."""

    asked = 0

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        self.asked += 1
        return ()


def test_what_is_wrong_for_long_costs_a_small_model_next_to_nothing() -> None:
    """Nothing is kept for drafts, and sources and noise, which take time, are asked for rarely."""
    device, noise = Device([0.002, 0.0022], host=0.0), CountedNoise()
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.002, 0.0022], weight=4)))

    def takes_time() -> None:
        device.now += 0.0003

    source = ScriptedSource(8, 0.3, on_asked=takes_time)
    watched = Watched(Planner(knowledge, Hybrid([source], noise=noise), clock=device))
    run(watched, 1000, device)
    parked = [proposal.parked for proposal in watched.proposals]
    assert not any(parked[:64])
    assert sum(parked[64:]) > 0.9 * len(parked[64:])
    waits = [not proposal.run_ahead for proposal in watched.proposals[:-1]]
    assert noise.asked <= 1 + sum(waits), "it is not made beside a pass that has begun"
    assert source.asked < 120
    assert device.now < 1000 * 0.002 * 1.02


def test_nothing_is_proposed_where_nothing_of_all_sources_together_pays() -> None:
    leaves = TokenTree(tuple(map(TargetId, range(1, 8))), (-1,) * 7, ("draft",) * 7, (0.01,) * 7)
    device = Device([0.010 * n for n in range(1, 33)], host=0.0)
    drafts = PassTimes([0.0001 * n for n in range(1, 17)], weight=4)
    knowledge = Knowledge(
        costs=LearnedCosts(PassTimes([0.010, 0.011], weight=0), drafts),
        model=ModelWorth(Acceptance(start=0.9)),
    )
    free, model = Hybrid([ScriptedSource(8, 0.01)]), ScriptedModel(lambda *_: leaves)
    watched = Watched(Planner(knowledge, free, model, clock=device))
    run(watched, 20, device)
    asked = [proposal for proposal in watched.proposals if proposal.draft_passes]
    assert asked
    assert not any(proposal.tree for proposal in asked)


@pytest.mark.parametrize(
    ("offered", "right", "drafts"),
    [
        (None, 0.9, True),
        (None, 0.02, False),
        (0.9, 0.3, False),
        (0.3, 0.9, True),
        (0.9, 0.02, False),
    ],
)
def test_the_best_rate_wins(offered: float | None, right: float, drafts: bool) -> None:
    """A draft model is asked if it is expected to beat plain decoding and the free sources."""
    costs = Costs(rows=(1.0, 1.1, 1.2, 1.3), draft_pass=0.3)
    source = ScriptedSource(None if offered is None else 7, offered or 0.5)
    knowledge = Knowledge.given(costs, ModelWorth(Acceptance(start=right)))
    model = ScriptedModel(lambda *_: TokenTree.chain([TargetId(7)], "draft", [right]))
    planner = Planner(knowledge, Hybrid([source]), model, steps=1, clock=None)
    proposal = planner.propose(Context([TargetId(1)]), 8)
    assert bool(proposal.draft_passes) == drafts
    assert bool(proposal.tree) == (drafts or offered is not None)


def test_a_request_tells_the_budget_its_length_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = Knowledge.begin

    def counted(knowledge: Knowledge, tokens: int) -> Course:
        begun.append(tokens)
        return begin(knowledge, tokens)

    monkeypatch.setattr(Knowledge, "begin", counted)
    device = Device([0.010], host=0.0)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.010], weight=4)))
    run(Planner(knowledge, Hybrid([]), clock=device), 20, device)
    assert begun == [20]


def test_proposals_go_no_further_than_one_step_beyond_what_was_measured() -> None:
    device = Device([0.010 + 0.0001 * n for n in range(33)], host=0.0)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([1.0, 1.01], weight=0)))
    seen: list[tuple[int, int]] = []

    class Endless(ScriptedSource):
        def advance(self, state: int, token: TargetId) -> int:  # type: ignore[override]
            return state

    class Reaching(Planner):
        def propose(self, context: Context, limit: int) -> Proposal:
            found = super().propose(context, limit)
            seen.append((len(found.tree) + 1, knowledge.costs.rows.reach))
            return found

    run(Reaching(knowledge, Hybrid([Endless(7, 0.99)]), clock=device), 60, device)
    assert all(rows <= reach for rows, reach in seen)
    assert any(rows == reach > 2 for rows, reach in seen)


@pytest.mark.parametrize("steps", [2, None])
def test_now_and_then_a_longer_draft_is_tried_unless_its_length_is_given(steps: int | None) -> None:
    costs = Costs(rows=(1.0, 1.1, 1.2, 1.3), draft_pass=0.3)
    knowledge = Knowledge.given(costs, ModelWorth(Acceptance(start=0.9)))
    model = ScriptedModel(
        lambda _, steps: TokenTree.chain([TargetId(7)] * steps, "draft", [0.9] * steps)
    )
    planner = Planner(knowledge, Hybrid([]), model, steps=steps, clock=None)
    passes = [planner.propose(Context([TargetId(1)]), 16).draft_passes for _ in range(40)]
    assert set(passes) == ({2} if steps else {passes[0], min(16, 2 * passes[0] + 1)})


def test_rows_read_again_are_those_beyond_a_proposal_that_follows_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    monkeypatch.setattr(LearnedCosts, "observe_rereading", lambda _, rows: told.append(rows))
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([1.0], weight=4)))
    planner = Planner(knowledge, Hybrid([]), clock=SimulatedClock())
    context = Context([TargetId(1)])
    for proposed, rows in ((2, 3), (0, 4), (0, 9), (3, 4), (1, 7), (1, 2)):
        planner.propose(context, 8)
        tree = TokenTree.chain([TargetId(7)] * proposed, "draft")
        context.extend([TargetId(1)])
        planner.observe(Round(limit=8, tree=tree, path=(), emitted=(TargetId(1),), rows=rows))
    assert told == [3, 5, 0]


def test_a_pass_under_way_is_never_thrown_away() -> None:
    """A round that ran ahead is followed by one that proposes nothing."""
    trace, truth = a_world(9, 0.45, model=True, offered=0.5), costs_of("m2-ultra", host=0.05)
    ran_ahead = 0
    for text in trace.texts[:2]:
        clock = SimulatedClock()
        model = RecordedDrafter("it", text, truth, clock)
        knowledge = knowledge_of(truth, trace)
        watched = Watched(Planner(knowledge, Hybrid([]), model, clock=clock))
        target = TimedVerifier(ReplayVerifier(ids_of(text.length)), truth, clock)
        limits = Limits(max_tokens=300)
        for _ in decode(Context(ids_of(text.given)), watched, target, limits=limits, clock=clock):
            pass
        for before, after in pairwise(watched.proposals):
            assert not (before.run_ahead and after.tree)
            ran_ahead += before.run_ahead
    assert ran_ahead


class SpiedTimes(PassTimes):
    """Keeps what it was told, and believes nothing of it."""

    def __init__(self, prior: list[float]) -> None:
        super().__init__(prior, weight=4)
        self.observed: list[tuple[int, float]] = []

    def observe(self, count: int, seconds: float) -> None:
        self.observed.append((count, seconds))


def test_rows_are_learned_as_the_target_computed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of two are wrong, and every other time an id beside them is right."""
    clock, number, of_drafts, rows = SimulatedClock(), count(1), list[int](), list[int]()

    def guess(*_: object) -> TokenTree[TargetId]:
        drafts = next(number)
        clock.now += 0.25 if drafts > 1 else 9.0  # the first one reads the prompt
        ids = TargetId(8), TargetId(9), TargetId(drafts % 2)
        return TokenTree(ids, (-1, 0, -1), ("draft",) * 3, (0.9, 0.9, 0.4))

    monkeypatch.setattr(ModelWorth, "learn", lambda *_, rows, **__: of_drafts.append(rows))
    times, drafts = SpiedTimes([1.0] * 9), SpiedTimes([0.01] * 16)
    model = ModelWorth(Acceptance(start=0.9))
    knowledge = Knowledge(costs=LearnedCosts(times, drafts), model=model)
    planner = Planner(knowledge, Hybrid([]), ScriptedModel(guess), clock=clock)
    second_per_row = Costs(rows=tuple(map(float, range(1, 10))))
    target = TimedVerifier(ReplayVerifier([TargetId(1)] * 60), second_per_row, clock)
    limits = Limits(max_tokens=40)
    for event in decode(Context([TargetId(1)]), planner, target, limits=limits, clock=clock):
        rows += [event.rows] if isinstance(event, Round) and event.tree else []
        if isinstance(event, Round) and planner.course.allowance.forbids(1.0):
            break
    # A round takes what its rows took; the first draft, which reads the prompt, is not timed.
    assert times.observed[-len(rows) + 1 :] == [(one, float(one)) for one in rows[1:]]
    assert drafts.observed
    assert {seconds for _, seconds in drafts.observed} == {0.25}
    assert of_drafts == [one - 1 for one in rows]
