"""Free sources cost a small model little where they cannot win, and little of what they win."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from recorded_worlds import a_world

from lab.project import (
    RecordedSource,
    SimulatedClock,
    TimedVerifier,
    ids_of,
    knowledge_of,
    project,
)
from lab.recorded_proposals import ProposalTrace
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.cost import read_curve
from tokalign.runtime.draft.hybrid import ComingNoise, Hybrid
from tokalign.runtime.draft.knowledge import MAX_IDS, Parking
from tokalign.runtime.draft.learned_costs import Costs
from tokalign.runtime.draft.planner import Planner
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.rounds import Context, Proposal, Verdict
from tokalign.tokenizer.vocabulary import TargetId

ASKING, STORING = 0.0003, 0.0002
"""Seconds of the host that asking all sources takes, and of a pass that storing its rows takes."""


class SlowSource(RecordedSource):
    """A source that takes time to be asked."""

    clock: SimulatedClock

    def follow(self, ids: Sequence[TargetId]) -> int:
        self.clock.now += ASKING
        return super().follow(ids)


class StoringVerifier(TimedVerifier):
    """A verifier whose rows take time to be stored."""

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        self._clock.now += 0.0 if proposal.parked else STORING
        return super().verify(context, proposal)


class CountedNoise:
    """Noise of no position that is known, and how often it was asked for."""

    asked = 0

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        self.asked += 1
        return ()


def seconds(trace: ProposalTrace, costs: Costs, noise: ComingNoise | None = None) -> float:
    """What decoding all texts takes with free sources."""
    clock, knowledge = SimulatedClock(), knowledge_of(costs, trace)
    for text in trace.texts:
        source = SlowSource("it", text)
        source.clock = clock
        planner = Planner(knowledge, Hybrid([source], noise=noise, max_tokens=MAX_IDS), clock=clock)
        verifier = StoringVerifier(ReplayVerifier(ids_of(text.length)), costs, clock)
        limits = Limits(max_tokens=text.length - text.given)
        for _ in decode(Context(ids_of(text.given)), planner, verifier, limits=limits):
            pass
    return clock.now


def costs_of(milliseconds: int, host: float = 0.0) -> Costs:
    rows = read_curve("m4-pro").rows_at(200)
    return Costs(rows=tuple(milliseconds / 1000 * t / rows[0] for t in rows), host=host)


@pytest.mark.parametrize("milliseconds", [2, 4, 8, 16, 40])
@pytest.mark.parametrize("right", [0.02, 0.8])
def test_it_is_never_slower_at_any_pass_time(milliseconds: int, right: float) -> None:
    trace = a_world(1, right, model=False, tokens=6000, length=1000)
    auto = seconds(trace, costs_of(milliseconds))
    plain = trace.tokens * milliseconds / 1000
    found = project(trace, costs_of(milliseconds, ASKING + STORING), lengths=(1, 2, 3, 5, 8))
    best = found.fixed[found.best]
    if best > 1.0:
        assert plain / auto >= 0.97 * best
    else:
        assert plain / auto >= 0.98


def test_noise_is_asked_for_only_where_something_may_be_drafted() -> None:
    """For 152,000 ids it takes a CPU 30 ms, if nothing has made it while a pass ran."""
    noise = CountedNoise()
    seconds(a_world(1, 0.02, model=False, tokens=60, length=60), costs_of(40), noise)
    assert noise.asked < 20


def test_parking_has_probes() -> None:
    parking, parked = Parking(), list[bool]()
    for _ in range(64 + 2 * 256):
        parked.append(parking.is_parked)
        parking.count(accepted=0)
    assert not any(parked[:64])
    assert parked[64:] == [*[True] * 240, *[False] * 16] * 2
    parking.count(accepted=1)
    assert not parking.is_parked
