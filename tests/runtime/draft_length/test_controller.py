"""The gain controller finds the best length of a constant world, and cannot lose much in any."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.cost.curve import read_curve, shipped_names
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.project import known_pace, project
from tokalign.evaluate.recorded_proposals import (
    WRONG,
    ProposalTrace,
    RecordedProposal,
    TracedText,
)
from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.controller import GainController
from tokalign.runtime.draft_length.estimates import Acceptance, PassTimes
from tokalign.runtime.draft_length.pace import CREDIT, SHARE, SLACK, Pace
from tokalign.runtime.events import Event
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

LONGEST = 8


def a_world(
    seed: int,
    right: float,
    *,
    model: bool,
    said: float | None = None,
    offered: float = 1.0,
    tokens: int = 1800,
) -> ProposalTrace:
    """Texts in which every offered id is right with one probability, given those before it.

    said: what the source claims it to be. offered: share of positions with an offer at all.
    """
    chance, texts = Random(seed), []
    for _ in range(tokens // 300):
        text = TracedText(given=10, length=310)
        for at in range(10, 309):
            room = min(LONGEST, 310 - at - 1)
            accepted = 0
            while accepted < room and chance.random() < right:
                accepted += 1
            if chance.random() < offered:
                likely = () if said is None else (said,) * room
                text.proposals.setdefault("it", {})[at] = RecordedProposal.of(
                    TokenTree.chain([WRONG] * room, "it", likely),
                    range(accepted),
                    passes=LONGEST if model else 0,
                )
        texts.append(text)
    return ProposalTrace(texts=tuple(texts), every_position=True)


def costs(name: str, *, draft_pass: float = 0.08, host: float = 0.01) -> Costs:
    rows = read_curve(name).rows_at(200)
    return Costs(rows=tuple(t / rows[0] for t in rows), draft_pass=draft_pass, host=host)


@pytest.mark.parametrize("curve", shipped_names())
@pytest.mark.parametrize("right", [0.15, 0.45, 0.8])
@pytest.mark.parametrize("model", [True, False])
def test_in_a_constant_world_it_is_as_good_as_the_best_length(
    curve: str, right: float, model: bool
) -> None:
    found = project(a_world(1, right, model=model), costs(curve), lengths=(1, 2, 3, 5, 8))
    assert found.auto >= 0.99
    assert found.auto >= 0.95 * found.fixed[found.best], (found.best, found.fixed)


@pytest.mark.parametrize("model", [True, False])
def test_a_wrong_curve_is_corrected_while_decoding(model: bool) -> None:
    """It begins with the curve of another machine, in another unit."""
    lengths = (2, 3, 5, 8)
    truth, trace = costs("m2-ultra"), a_world(2, 0.75, model=model, tokens=3600)

    def guessed() -> Pace:
        rows = PassTimes(read_curve("24-percent-per-row").rows_at(0), weight=0)
        return Pace(rows, PassTimes([0.2 * n for n in range(1, 17)], weight=0) if model else None)

    found = project(trace, truth, pace=guessed, lengths=lengths)
    assert found.auto >= 0.97 * found.fixed[found.best]


def test_it_uses_only_the_offers_that_pay() -> None:
    """Half of the offers are right 95 % of the time and say so, half 10 %: no fixed length wins."""
    good, bad = a_world(3, 0.95, model=False, said=0.95), a_world(4, 0.1, model=False, said=0.1)
    chance, texts = Random(0), []
    for pair in zip(good.texts, bad.texts, strict=True):
        by = {at: chance.choice(pair).proposals["it"][at] for at in pair[0].proposals["it"]}
        texts.append(TracedText(given=10, length=310, proposals={"it": by}))
    found = project(
        ProposalTrace(texts=tuple(texts), every_position=True), costs("m2-ultra"), lengths=(3, 8)
    )
    assert found.auto > 1.05 * found.fixed[found.best]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 99),
    st.floats(0, 1),
    st.none() | st.floats(0, 1),
    st.booleans(),
    st.floats(0.05, 1),
    st.lists(st.floats(0.2, 4.0), min_size=2, max_size=9),
    st.floats(0, 0.5),
)
def test_it_never_loses_more_than_it_may(
    seed: int,
    right: float,
    said: float | None,
    model: bool,
    offered: float,
    rows: list[float],
    draft_pass: float,
) -> None:
    """Whatever the source claims, whatever rows cost: a bounded number of passes is lost.

    What may be lost: the slack, the share, and the last round before it rests; plain decoding that
    waits for offers is slower by the overlap of host and device until that is known.
    """
    truth = Costs(rows=(1.0, *rows), draft_pass=draft_pass)
    trace = a_world(seed, right, model=model, said=said, offered=offered, tokens=900)
    found = project(trace, truth, lengths=[])
    dearest = max(truth.verify(m) for m in range(1, 18)) + 16 * draft_pass
    time = trace.tokens / found.auto
    assert time <= trace.tokens * (1 + SHARE) + SLACK + dearest + 1e-6


def test_equal_clocks_give_equal_decisions() -> None:
    trace, truth = a_world(5, 0.5, model=True), costs("m1-max")
    assert project(trace, truth, lengths=[]) == project(trace, truth, lengths=[])


def test_a_source_that_stops_being_right_is_left() -> None:
    """After 1,500 good tokens 6,000 bad ones: what was gained is not lost again."""
    good = a_world(6, 0.9, model=True, tokens=1500)
    bad = a_world(7, 0.02, model=True, tokens=6000)
    both = ProposalTrace(texts=good.texts + bad.texts, every_position=True)
    truth = costs("24-percent-per-row")
    pace = known_pace(truth, both)
    found = project(both, truth, pace=lambda: pace, lengths=[])
    alone = project(good, truth, lengths=[])
    gained = good.tokens - good.tokens / alone.auto
    assert both.tokens - both.tokens / found.auto > gained - 40
    assert gained > 200


def test_tries_of_a_model_that_does_not_pay_back_off() -> None:
    pace = known_pace(costs("m2-pro"), a_world(8, 0.0, model=True, tokens=300))
    waits = []
    for _ in range(9):
        pace.tried(pays=False)
        waits.append(0)
        while not pace.is_due(1):
            pace.a_round_less()
            waits[-1] += 1
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    pace.tried(pays=True)
    assert pace.is_due(1)


def test_a_model_is_tried_only_where_it_could_pay() -> None:
    dear = Pace(PassTimes([1.0, 2.0], weight=4), PassTimes([0.3], weight=4))
    cheap = Pace(PassTimes([1.0, 1.2], weight=4), PassTimes([0.3], weight=4))
    assert cheap.is_due(8)
    waited = 0
    while not dear.is_due(8):
        dear.a_round_less()
        waited += 1
    assert waited == 1024  # costs may have been mistaken


@pytest.mark.parametrize(("tokens", "passes"), [(32, 1), (100, 3), (4000, 8)])
def test_a_short_request_has_little_to_lose(tokens: int, passes: int) -> None:
    pace = Pace(PassTimes([1.0, 1.2], weight=4))
    pace.begin(tokens)
    rounds = 0
    while not pace.rests:
        pace.account(1.5, 1, expected=1.5)  # half a pass is lost in each
        rounds += 1
    assert passes - 0.1 <= rounds * (0.5 - SHARE) <= passes + 0.5


def test_a_dear_round_counts_in_full_and_a_hiccup_does_not() -> None:
    dear, hiccup = (Pace(PassTimes([1.0, 1.2], weight=4)) for _ in range(2))
    dear.account(10.0, 1, expected=10.0)
    hiccup.account(100.0, 1, expected=1.0)
    assert dear.rests
    assert not hiccup.rests


# -- time ------------------------------------------------------------------------------------------


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


class Never:
    """A source that never has anything, at a price."""

    def __init__(self, device: Device, price: float) -> None:
        self._device, self._price = device, price
        self.asked = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        self._device.now += self._price
        self.asked += 1
        return Proposal()


class Watched:
    """Keeps what a controller proposes."""

    def __init__(self, controller: GainController) -> None:
        self._controller = controller
        self.proposals: list[Proposal] = []
        self.verify = controller.verify

    def propose(self, context: Context, limit: int) -> Proposal:
        self.proposals.append(self._controller.propose(context, limit))
        return self.proposals[-1]


def run(controller: GainController | Watched, tokens: int, device: Device) -> list[Event]:
    limits = Limits(max_tokens=tokens)
    return list(decode(Context([TargetId(0)]), controller, controller, limits=limits, clock=device))


def test_plain_rounds_run_ahead_and_are_timed_from_verdict_to_verdict() -> None:
    """10 ms on the device, 3 ms on the host: 10 ms a token, not 13; the sources are asked less."""
    device = Device([0.010, 0.012], host=0.003)
    pace = Pace(PassTimes([0.013, 0.015], weight=0))
    source = Never(device, price=0.0002)
    watched = Watched(GainController(pace, device, free=source, clock=device))
    run(watched, 600, device)
    ahead = [proposal.run_ahead for proposal in watched.proposals]
    assert sum(ahead[200:-1]) > 0.95 * len(ahead[200:-1])
    assert pace.plain == pytest.approx(0.010, rel=0.02)
    assert device.now < 600 * 0.010 * 1.05
    assert source.asked < 500


def test_a_pass_under_way_is_never_thrown_away() -> None:
    """Whoever is told to run ahead proposes nothing in the next round."""
    trace, truth = a_world(9, 0.45, model=True, offered=0.5), costs("m2-ultra", host=0.05)
    for text in trace.texts[:2]:
        for before, after in pairwise(_proposals(text, truth, known_pace(truth, trace))):
            assert not (before.run_ahead and after.tree)


def _proposals(text: TracedText, truth: Costs, pace: Pace) -> list[Proposal]:
    from tokalign.evaluate.project import _Clock, _RecordedDrafter, _TimedReplay

    clock = _Clock()
    controller = GainController(
        pace,
        _TimedReplay(text.length, truth, clock),
        model=_RecordedDrafter("it", text, truth, clock),
        clock=clock,
    )
    watched, context = Watched(controller), Context([TargetId(i) for i in range(text.given)])
    for _ in decode(context, watched, controller, limits=Limits(max_tokens=300)):
        pass
    return watched.proposals


# -- estimates -------------------------------------------------------------------------------------


def test_times_of_counts_never_seen_follow_their_neighbours() -> None:
    times = PassTimes([1.0, 1.2, 1.4, 1.6], weight=0)
    assert not times.is_calibrated
    times.observe(1, 0.030)
    assert times(3) == pytest.approx(0.042)
    times.observe(3, 0.084)
    assert times(2) == pytest.approx(1.2 * 0.045)
    assert times.table(4) == pytest.approx([times(m) for m in (1, 2, 3, 4)])


def test_an_assumed_curve_is_explored_step_by_step() -> None:
    assumed, measured = PassTimes([1.0, 1.2], weight=0), PassTimes([1.0, 1.2], weight=4)
    assert assumed.reach == 3
    assumed.observe(3, 0.02)
    assert assumed.reach == 5
    assert measured.reach > 1000


def test_one_slow_pass_is_not_believed_many_are() -> None:
    times = PassTimes([0.010], weight=4)
    times.observe(1, 1.0)
    assert times(1) < 0.013
    for _ in range(200):
        times.observe(1, 0.050)
    assert times(1) == pytest.approx(0.050, rel=0.01)


@given(st.floats(0.05, 0.95))
def test_acceptance_is_learned_by_position(right: float) -> None:
    chance, acceptance = Random(3), Acceptance()
    for _ in range(2000):
        first = chance.random() < right
        acceptance.observe(2, 2 if first else 0)
    first, second, third = acceptance.probabilities(3)
    assert first == pytest.approx(right, abs=0.15)
    assert second > 0.9
    assert third == pytest.approx(second, abs=0.05)  # never seen: as good as those before it


def test_a_change_of_the_text_is_noticed() -> None:
    acceptance = Acceptance()
    for _ in range(1000):
        acceptance.observe(1, 1)
    for _ in range(30):
        acceptance.observe(1, 0)
    assert acceptance.probabilities(1)[0] < 0.35


def test_credit_exceeds_slack() -> None:
    """What was gained may be risked again: total time stays below plain decoding's."""
    assert CREDIT > SLACK
