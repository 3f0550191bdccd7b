"""The controller on a clock: what it times, whom it asks, and that no pass is thrown away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from random import Random

import pytest
from recorded_worlds import a_world, costs_of
from scripted_models import ScriptedModel, ScriptedSource

from lab.project import RecordedDrafter, SimulatedClock, TimedVerifier, ids_of, knowledge_of
from lab.round_costs import RoundCosts
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.draft import neural
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge, ModelWorth
from tokalign.runtime.draft.neural import DRAFT, Acceptance
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.rounds import Context, Drafter, Event, Proposal, Round, Verdict
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Device:
    """Computes passes one after another while the host goes on; plays target and clock at once.

    Several generations may take turns on it, each with a `Target`. The text is zeros.
    """

    def __init__(self, rows: list[float], host: float) -> None:
        self.now = self.free_at = 0.0
        self.rows, self.host = rows, host
        self._target = Target(self)

    def __call__(self) -> float:
        return self.now

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        return self._target.verify(context, proposal)

    def start(self, rows: int) -> tuple[float, float]:
        """When a pass of so many rows will begin, and when it will end."""
        begins = max(self.free_at, self.now)
        self.free_at = begins + self.rows[rows - 1]
        return begins, self.free_at


class Target:
    """The target of one generation."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._under_way: tuple[float, float] | None = None

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        device, rows = self._device, len(proposal.tree) + 1
        device.now += device.host
        ahead = self._under_way if rows == 1 else None
        begins, ends = device.start(rows) if ahead is None else ahead
        self._under_way = device.start(1) if proposal.run_ahead else None
        waited = max(0.0, begins - device.now)
        device.now = max(device.now, ends)
        path = proposal.tree.path_of([TargetId(0)] * rows)
        ids = (TargetId(0),) * (len(path) + 1)
        return Verdict(ids=ids, path=tuple(path), rows=rows, waited=waited)


class Watched(Drafter):
    """Keeps what a controller proposes."""

    def __init__(self, controller: Controller) -> None:
        self._planner = controller
        self.proposals: list[Proposal] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        self.proposals.append(self._planner.propose(context, limit))
        return self.proposals[-1]

    def observe(self, one: Round) -> None:
        self._planner.observe(one)


def run(drafter: Drafter, tokens: int, device: Device) -> list[Event]:
    limits = Limits(max_tokens=tokens)
    return list(Decoding(Context([TargetId(0)]), drafter, device, limits=limits, clock=device))


def test_plain_rounds_run_ahead_and_are_timed_from_round_to_round() -> None:
    """10 ms on the device, 3 ms on the host: 10 ms a token, not 13; the sources are asked less."""
    device = Device([0.010, 0.012], host=0.003)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.013, 0.015], weight=0)))

    def takes_time() -> None:
        device.now += 0.0002

    source = ScriptedSource(None, on_asked=takes_time)
    watched = Watched(Controller(knowledge, TreeDrafter([source])))
    run(watched, 600, device)
    ahead = [proposal.run_ahead for proposal in watched.proposals]
    assert sum(ahead[200:-1]) > 0.95 * len(ahead[200:-1])
    assert knowledge.costs.plain == pytest.approx(0.010, rel=0.02)
    assert device.now < 600 * 0.010 * 1.05
    assert source.asked < 500


def test_sources_are_asked_on_beside_plain_passes_after_a_process_was_stopped() -> None:
    """It stood for ten minutes while they were asked."""

    def asked(stop: float) -> int:
        device = Device([0.010, 0.012], host=0.003)
        knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.013, 0.015], weight=0)))

        def takes_time() -> None:
            device.now += stop if source.asked == 60 else 0.0002

        source = ScriptedSource(None, on_asked=takes_time)
        watched = Watched(Controller(knowledge, TreeDrafter([source])))
        run(watched, 1200, device)
        assert sum(proposal.run_ahead for proposal in watched.proposals) > 1000
        return source.asked

    assert asked(600.0) > 0.5 * asked(0.0002) > 100


@pytest.mark.parametrize("unit", [0.02, 1.0, 50.0])
@pytest.mark.parametrize(
    ("slow", "paused", "first"),
    [((), 0, 0), ((6,), 0, 0), (range(2, 7), 0, 0), ((), 1, 0), ((), 0, 3)],
)
def test_one_strange_moment_while_plain_decoding_is_timed_stops_no_drafting(
    slow: Sequence[int], paused: int, first: int, unit: float
) -> None:
    """Nine of ten guesses are right and nothing was measured, so drafts soon pay.

    slow: these passes take eight times as long. paused: after this round the host is delayed, so
    that the pass that ran ahead seems to take no time. first: ids of a request before, too short
    to time plain decoding. unit: of the assumed curve; a pass takes 1 second.
    """

    class Busy(Device):
        passes = 0

        def start(self, rows: int) -> tuple[float, float]:
            self.passes += 1
            begins, ends = super().start(rows)
            self.free_at += 7.0 * self.rows[rows - 1] * (self.passes in slow)
            return begins, max(ends, self.free_at)

    device, text = Busy([1.0, 1.1, 1.2, 1.3, 1.4], host=0.05), Random(3)
    assumed = PassTimes([unit * (1 + 0.24 * n) for n in range(8)], weight=0)
    knowledge = Knowledge(costs=LearnedCosts(assumed))
    rounds, source = list[Round](), Guesses(lambda: text.random() < 0.9)
    for tokens in (first, 300) if first else (300,):
        limits, controller = Limits(max_tokens=tokens), Controller(knowledge, TreeDrafter([source]))
        for event in Decoding(
            Context([TargetId(0)]), controller, device, limits=limits, clock=device
        ):
            rounds += [event] if isinstance(event, Round) else []
            device.now += 8.0 * (isinstance(event, Round) and len(rounds) == paused)
    assert sum(bool(one.tree) for one in rounds) > 130
    assert 0.9 < knowledge.costs.plain < 1.1


class CountedNoise:
    """Noise of no position that is known, and how often it was asked for."""

    asked = 0

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        self.asked += 1
        return ()


@pytest.mark.parametrize("keeping", [0.0, 0.0004])
def test_what_is_wrong_for_long_costs_a_small_model_next_to_nothing(keeping: float) -> None:
    """Sources and noise, which take time, are asked for rarely; and where keeping logits for later
    drafts takes a fifth of a pass, nothing is kept."""

    class Keeping(Device):
        bare = False

        def verify(self, context: Context, proposal: Proposal) -> Verdict:
            self.bare = proposal.bare
            return super().verify(context, proposal)

        def start(self, rows: int) -> tuple[float, float]:
            begins, ends = super().start(rows)
            self.free_at += 0.0 if self.bare else keeping
            return begins, max(ends, self.free_at)

    device, noise = Keeping([0.002, 0.0022], host=0.0), CountedNoise()
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.002, 0.0022], weight=4)))

    def takes_time() -> None:
        device.now += 0.0003

    source = ScriptedSource(8, 0.3, on_asked=takes_time)
    watched = Watched(Controller(knowledge, TreeDrafter([source], noise=noise)))
    run(watched, 1000, device)
    bare = [proposal.bare for proposal in watched.proposals]
    assert not keeping or sum(bare) > 0.9 * len(bare)
    waits = [not proposal.run_ahead for proposal in watched.proposals[:-1]]
    assert noise.asked <= 1 + sum(waits), "it is not made beside a pass that has begun"
    assert source.asked < 120
    assert device.now < 1000 * 0.002 * 1.02


def test_nothing_is_proposed_where_nothing_of_all_sources_together_pays() -> None:
    leaves = TokenTree(tuple(map(TargetId, range(1, 8))), (-1,) * 7, ("draft",) * 7, (0.01,) * 7)
    device = Device([0.010 * n for n in range(1, 33)], host=0.0)
    drafts = PassTimes([0.01 * n for n in range(1, 17)], weight=4)
    knowledge = Knowledge(
        costs=LearnedCosts(PassTimes([0.010, 0.011], weight=0)),
        models={DRAFT: ModelKnowledge(drafts, ModelWorth(Acceptance(start=0.9)))},
    )
    free, model = TreeDrafter([ScriptedSource(8, 0.01)]), ScriptedModel(lambda *_: leaves)
    watched = Watched(Controller(knowledge, free, model))
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
    costs = RoundCosts(rows=(1.0, 1.1, 1.2, 1.3), draft_pass=0.3)
    source = ScriptedSource(None if offered is None else 7, offered or 0.5)
    knowledge = Knowledge.given(costs, {DRAFT: ModelWorth(Acceptance(start=right))})
    model = ScriptedModel(lambda *_: TokenTree.chain([TargetId(7)], "draft", [right]))
    controller = Controller(knowledge, TreeDrafter([source]), model, timed=False)
    proposal = controller.propose(Context([TargetId(1)]), 8)
    assert bool(proposal.draft_passes) == drafts
    assert bool(proposal.tree) == (drafts or offered is not None)


class Endless(ScriptedSource):
    """Expects its id again and again."""

    def advance(self, state: int, token: TargetId) -> int:  # type: ignore[override]
        return state


@pytest.mark.parametrize("right", [0.9, 0.01], ids=["pays", "a trial"])
def test_free_sources_offer_whole_trees_beside_a_model_that_has_lost_enough(right: float) -> None:
    """Beside one that may draft, they stop where they cannot reach its rate."""

    draft = TokenTree.chain([TargetId(5)] * 4, "draft", [0.9] * 4)

    def offered(lost: float) -> list[Proposal]:
        drafts = PassTimes([0.0002 * n for n in range(1, 17)], weight=4)
        knowledge = Knowledge(
            costs=LearnedCosts(PassTimes([0.010 + 0.0001 * n for n in range(16)], weight=4)),
            models={DRAFT: ModelKnowledge(drafts, ModelWorth(Acceptance(start=right)))},
            rounds=1,
        )
        knowledge.models_losses.account(lost, 1000, drafted=True)
        model = ScriptedModel(lambda *_: draft)
        controller = Controller(knowledge, TreeDrafter([Endless(7, 0.3)]), model)
        controller.observe(Round(limit=0, tree=EMPTY_TREE, path=(), emitted=(TargetId(7),)))
        return [controller.propose(Context([TargetId(7)]), 8) for _ in range(2)]

    assert offered(0.0)[0].draft_passes
    begun, rested = offered(100.0)
    assert not begun.draft_passes
    assert not rested.draft_passes
    assert len(rested.tree) > 1


def test_proposals_go_no_further_than_one_step_beyond_what_was_measured() -> None:
    device = Device([0.010 + 0.0001 * n for n in range(33)], host=0.0)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([1.0, 1.01], weight=0)))
    seen: list[tuple[int, int]] = []

    class Reaching(Controller):
        def propose(self, context: Context, limit: int) -> Proposal:
            found = super().propose(context, limit)
            seen.append((len(found.tree) + 1, knowledge.costs.rows.reach))
            return found

    run(Reaching(knowledge, TreeDrafter([Endless(7, 0.99)])), 60, device)
    assert all(rows <= reach for rows, reach in seen)
    assert any(rows == reach > 2 for rows, reach in seen)


@pytest.mark.parametrize(("timed", "lengths"), [(False, {3}), (True, {2, 5})])
def test_now_and_then_a_longer_draft_is_tried_unless_its_length_is_given(
    timed: bool, lengths: set[int]
) -> None:
    costs = RoundCosts(rows=tuple(1.0 + 0.05 * n for n in range(16)), draft_pass=0.2)
    knowledge = Knowledge.given(costs, {DRAFT: ModelWorth(Acceptance(start=0.6))})
    knowledge.rounds = 1  # else plain decoding would be timed first
    model = ScriptedModel(
        lambda _, steps: TokenTree.chain([TargetId(7)] * steps, "draft", [0.6] * steps), 3
    )
    controller = Controller(knowledge, TreeDrafter([]), model, timed=timed)
    controller.observe(Round(limit=0, tree=EMPTY_TREE, path=(), emitted=(TargetId(7),)))
    passes = [controller.propose(Context([TargetId(1)]), 16).draft_passes for _ in range(40)]
    assert set(passes) == lengths


@pytest.mark.parametrize("ends", [120, 1000], ids=["a copy", "a copy without end"])
def test_plain_decoding_is_timed_again_after_a_copy_unless_that_has_no_end(ends: int) -> None:
    class Copy(ScriptedSource):
        """Knows the text between two places."""

        def follow(self, ids: Sequence[TargetId]) -> int:
            return len(ids)

        def advance(self, state: int, token: TargetId) -> int:  # type: ignore[override]
            return state + 1

        def expect(self, state: int) -> list[tuple[TargetId, float]]:
            return super().expect(state) if 60 <= state < ends else []

    rows = [0.0100, 0.0101, 0.0102, 0.0103, *[0.05] * 29]
    device = Device(rows, host=0.0)
    costs = LearnedCosts(PassTimes(rows, weight=4))
    knowledge = Knowledge(costs=costs, rounds=1)
    watched = Watched(Controller(knowledge, TreeDrafter([Copy(0, 0.9)])))
    rounds = [one for one in run(watched, 800, device) if isinstance(one, Round)]
    proposals = watched.proposals[60:]
    plainly = [n for n, one in enumerate(proposals) if not one.tree]
    assert len(rounds) > 100
    assert plainly[0] >= 14  # of 15 rounds of the copy, the fourth is when a timing is due
    assert not knowledge.plain_timings.is_overdue
    if ends == 1000:
        assert 60 < plainly[0] < 70


def test_rows_read_again_are_those_beyond_a_proposal_that_follows_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    monkeypatch.setattr(LearnedCosts, "observe_rereading", lambda _, rows: told.append(rows))
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([1.0], weight=4)))
    controller = Controller(knowledge, TreeDrafter([]))
    context = Context([TargetId(1)])
    for proposed, rows in ((2, 3), (0, 4), (0, 9), (3, 4), (1, 7), (1, 2)):
        controller.propose(context, 8)
        tree = TokenTree.chain([TargetId(7)] * proposed, "draft")
        context.extend([TargetId(1)])
        emitted = (TargetId(1),)
        controller.observe(Round(limit=8, tree=tree, path=(), emitted=emitted, rows=rows))
    assert told == [3, 5, 0]


def test_a_pass_under_way_is_never_thrown_away() -> None:
    """A round that ran ahead is followed by one that proposes nothing."""
    trace, truth = a_world(9, 0.45, model=True, offered=0.5), costs_of("m2-ultra", host=0.05)
    ran_ahead = 0
    for text in trace.texts[:2]:
        clock = SimulatedClock()
        model = RecordedDrafter("it", text, truth, clock)
        knowledge = knowledge_of(truth, trace)
        watched = Watched(Controller(knowledge, TreeDrafter([]), model))
        target = TimedVerifier(ReplayVerifier(ids_of(text.length)), truth, clock)
        limits = Limits(max_tokens=300)
        for _ in Decoding(Context(ids_of(text.given)), watched, target, limits=limits, clock=clock):
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
    models = {DRAFT: ModelKnowledge(drafts, model)}
    knowledge = Knowledge(costs=LearnedCosts(times), models=models)
    controller = Controller(knowledge, TreeDrafter([]), ScriptedModel(guess))
    second_per_row = RoundCosts(rows=tuple(map(float, range(1, 10))))
    target = TimedVerifier(ReplayVerifier([TargetId(1)] * 60), second_per_row, clock)
    limits = Limits(max_tokens=20)
    for event in Decoding(Context([TargetId(1)]), controller, target, limits=limits, clock=clock):
        rows += [event.rows] if isinstance(event, Round) and event.tree else []
    # A round takes what its rows took; the first draft, which reads the prompt, is not timed.
    assert times.observed[-len(rows) + 1 :] == [(one, float(one)) for one in rows[1:]]
    assert drafts.observed
    assert {seconds for _, seconds in drafts.observed} == {0.25}
    assert of_drafts == [one - 1 for one in rows]


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("right", [0.9, 0.1])
@pytest.mark.parametrize("pause", [0.0, 0.3, 1.0, 3.0])
def test_what_a_reader_hides_of_a_pass_is_no_gain_of_drafting(
    pause: float, right: float, measured: bool
) -> None:
    """A plain pass that runs ahead is computed while the reader works, and a draft is not.

    pause: of the reader after every token, in plain passes.
    """

    def decoded(drafter: Drafter, device: Device) -> float:
        limits = Limits(max_tokens=1500)
        events = Decoding(Context([TargetId(0)]), drafter, device, limits=limits, clock=device)
        for event in events:
            device.now += pause * len(event.emitted) if isinstance(event, Round) else 0.0
        return device.now

    rows = [1.0, 1.2, 1.3, 1.4]
    costs = LearnedCosts(PassTimes(rows if measured else [0.02, 0.03], weight=4 * measured))
    knowledge = Knowledge(costs=costs)
    device, text = Device(rows, host=0.0), Random(3)
    source = Guesses(lambda: text.random() < right)
    took = decoded(Controller(knowledge, TreeDrafter([source])), device)
    plain = decoded(NoDrafter(), Device(rows, host=0.0))
    assert plain / took > (1.15 if pause == 0.0 and right > 0.5 else 0.99)
    assert max(0.25, 1.0 - pause) - 0.15 < knowledge.costs.plain < 1.15


class Guesses(ScriptedSource):
    """Expects one more id everywhere, which is right as often as `is_right` says."""

    def __init__(self, is_right: Callable[[], bool]) -> None:
        super().__init__(0, 0.7)
        self._is_right = is_right

    def expect(self, state: int) -> list[tuple[TargetId, float]]:
        [(_, odds)] = super().expect(state)
        return [(TargetId(0 if self._is_right() else 7), odds)]


def test_what_reading_a_long_prompt_takes_the_sources_is_no_loss_of_drafting() -> None:
    """They read 50,000 ids when they are first asked, for as long as twenty passes."""

    def drafted(reading: float) -> list[bool]:
        device, text = Device([1.0, 1.2, 1.3, 1.4], host=0.0), Random(3)
        source = Guesses(lambda: text.random() < 0.5)

        def read() -> None:
            device.now += reading * (source.asked == 1)

        source._on_asked = read
        knowledge = Knowledge(costs=LearnedCosts(PassTimes([0.02, 0.03], weight=0)))
        events = run(Controller(knowledge, TreeDrafter([source])), 100, device)
        return [bool(event.tree) for event in events if isinstance(event, Round)]

    assert drafted(20.0) == drafted(0.0)
    assert sum(drafted(20.0)) > 40


@pytest.mark.parametrize("jobs", [2, 4, 8])
def test_passes_of_others_that_run_ahead_are_nobody_elses_time(jobs: int) -> None:
    """On one device, every other text can be drafted, and all others run ahead."""
    rows = [1.0, 1.2, 1.3, 1.4]
    device = Device(rows, host=0.05)
    knowledge = Knowledge(costs=LearnedCosts(PassTimes([one + 0.05 for one in rows], weight=4)))
    limits, running, drafted = Limits(max_tokens=300), deque[Iterator[Event]](), 0
    for job in range(jobs):
        free = TreeDrafter([Guesses(lambda: True)] if job % 2 else [])
        controller, target = Controller(knowledge, free), Target(device)
        context = Context([TargetId(0)])
        running.append(Decoding(context, controller, target, limits=limits, clock=device))
    while running:
        events = running.popleft()
        one = next((event for event in events if isinstance(event, Round)), None)
        if one is not None:
            running.append(events)
            drafted += bool(one.tree)
    assert 0.85 < knowledge.costs.plain < 1.15
    assert knowledge.costs.rows(2) == pytest.approx(1.25, rel=0.1)
    assert drafted > 0.4 * 300 * (jobs // 2)


def test_a_model_that_has_lost_its_half_rests_and_the_sources_go_on() -> None:
    rows = [1.0 + 0.05 * n for n in range(33)]
    known = ModelKnowledge(
        PassTimes([0.1 * n for n in range(1, 17)], weight=4), ModelWorth(Acceptance(start=0.9))
    )
    knowledge = Knowledge(costs=LearnedCosts(PassTimes(rows, weight=4)), models={DRAFT: known})
    for losses in (knowledge.losses, knowledge.models_losses):
        losses.account(1.0, 1, drafted=True)
        losses.wait = 1024.0
    model = ScriptedModel(lambda _, steps: TokenTree.chain([TargetId(7)] * steps, "draft"))
    watched = Watched(Controller(knowledge, TreeDrafter([ScriptedSource(0, 0.5)]), model))
    run(watched, 30, Device(rows, host=0.0))
    assert not any(proposal.draft_passes for proposal in watched.proposals)
    assert sum(bool(proposal.tree) for proposal in watched.proposals) > 8


@pytest.mark.parametrize(
    ("reading", "tokens", "reads"),
    [(0.001, 30, True), (1.0, 18, False), (1.0, 100, False), (1.0, 400, True)],
)
def test_a_model_reads_a_prompt_when_the_rest_of_the_answer_should_save_that(
    reading: float, tokens: int, reads: bool
) -> None:
    """It is always right, and its first draft takes the time of a prompt of 100 ids besides."""
    clock, right = SimulatedClock(), TokenTree.chain([TargetId(0)] * 3, "draft", [0.9] * 3)
    asked: list[int] = []

    def guess(context: Context, steps: int) -> TokenTree[TargetId]:
        clock.now += 0.1 * steps + (0.0 if asked else 100 * reading)
        asked.append(len(context.ids))
        return right

    known = ModelKnowledge(
        PassTimes([0.1 * n for n in range(1, 17)], weight=4),
        ModelWorth(Acceptance(start=0.9)),
        reading=PassTimes([reading], weight=1),
    )
    costs = LearnedCosts(PassTimes([1.0, 1.05, 1.1, 1.15], weight=4))
    knowledge = Knowledge(costs=costs, models={DRAFT: known}, rounds=1)
    controller = Controller(knowledge, TreeDrafter([]), ScriptedModel(guess))
    rows = RoundCosts(rows=(1.0, 1.05, 1.1, 1.15))
    target = TimedVerifier(ReplayVerifier([TargetId(0)] * 600), rows, clock)
    limits = Limits(max_tokens=tokens)
    prompt = Context([TargetId(0)] * 100)
    rounds = [
        one
        for one in Decoding(prompt, controller, target, limits=limits, clock=clock)
        if isinstance(one, Round)
    ]
    assert bool(asked) == reads
    assert sum(len(one.emitted) for one in rounds) == tokens
    if not reads:
        assert clock.now == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("spread", "usual", "ids", "reads"),
    [(0.2, 0.5, 100, True), (0.0, 0.5, 100, False), (0.2, 0.14, 1000, False)],
)
def test_a_model_that_may_be_right_more_often_than_usual_reads_to_find_out(
    monkeypatch: pytest.MonkeyPatch, spread: float, usual: float, ids: int, reads: bool
) -> None:
    """The free sources bring as much as it is expected to bring, or it is expected to lose, so that
    by its mean it would never be asked. In the latter case it reads for no more than models may
    lose."""
    monkeypatch.setattr(neural, "_SPREAD", spread)
    asked: list[int] = []

    def guess(context: Context, steps: int) -> TokenTree[TargetId]:
        asked.append(len(context.ids))
        return TokenTree.chain([TargetId(0)] * steps, "draft")

    rows = [1.0 + 0.05 * n for n in range(17)]
    known = ModelKnowledge(
        PassTimes([0.1 * n for n in range(1, 17)], weight=4),
        ModelWorth(Acceptance(start=usual)),
        reading=PassTimes([0.005], weight=1),
    )
    costs = LearnedCosts(PassTimes(rows, weight=4))
    knowledge = Knowledge(costs=costs, models={DRAFT: known}, rounds=1)
    free = TreeDrafter([ScriptedSource(0, 0.7)] if usual == 0.5 else [])
    controller, device = Controller(knowledge, free, ScriptedModel(guess)), Device(rows, host=0.0)
    prompt, limits = Context([TargetId(0)] * ids), Limits(max_tokens=60 if reads else 600)
    for _ in Decoding(prompt, controller, device, limits=limits, clock=device):
        pass
    assert bool(asked) == reads


def test_a_request_learns_how_often_its_own_drafts_are_right() -> None:
    usual = Acceptance()
    assert usual.of_request() is usual
    for _ in range(160):
        usual.observe(1, 1)
    own = usual.of_request()
    assert own.probabilities(1) == usual.probabilities(1)
    for _ in range(6):
        own.observe(1, 0)
    assert own.probabilities(1)[0] == pytest.approx(usual.probabilities(1)[0] / 2, abs=0.01)
    assert usual.probabilities(1)[0] > 0.98
