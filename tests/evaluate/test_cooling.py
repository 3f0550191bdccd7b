"""A control pass shows that a machine slows down, and waits only where waiting helps."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from tokalign.evaluate import calibrate
from tokalign.evaluate.calibrate import _repeat
from tokalign.evaluate.cooling import CONTROL_ROWS, Control


class Chip:
    """Every pass heats it, and every pause of a second cools it by ten passes.

    heat: how much slower a pass is for each one before it. cools: whether pauses help.
    """

    def __init__(self, heat: float, *, cools: bool = True) -> None:
        self.passes, self.heat, self.cools, self.now = 0, heat, cools, 0.0

    def run(self) -> float:
        self.passes += 1
        seconds = 0.01 * (1 + self.heat * self.passes)
        self.now += seconds
        return seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.cools:
            self.passes = max(0, self.passes - round(10 * seconds))


def checked(chip: Chip, *, allowance: float, times: int = 60) -> Control:
    control = Control(chip.run, allowance=allowance, sleep=chip.sleep)
    for _ in range(times):
        control.check()
    return control


def test_a_chip_that_grows_hot_is_let_cool() -> None:
    hot, cooled = (checked(Chip(0.02), allowance=seconds) for seconds in (0.0, 100.0))
    assert hot.drift > 0.5
    assert cooled.drift < 0.2
    assert 0 < cooled.paused < 20
    assert f"{hot.drift:+.0%}" in str(hot)


def test_a_machine_that_does_not_throttle_is_not_waited_for() -> None:
    assert checked(Chip(0.0), allowance=100.0).paused == 0


def test_waiting_ends_where_it_does_not_help() -> None:
    """Another program has come to stay: two seconds are lost, and the drift is told."""
    control = checked(Chip(0.02, cools=False), allowance=100.0)
    assert control.paused == 2
    assert control.drift > 0.5


def test_pauses_have_an_end() -> None:
    assert checked(Chip(0.05), allowance=2.5).paused == 2.5


def test_a_single_slow_pass_is_no_drift() -> None:
    seconds = chain([0.01] * 5, [0.1], repeat(0.01))
    control = Control(lambda: next(seconds), allowance=100.0, sleep=lambda _: None)
    for _ in range(30):
        control.check()
    assert control.drift == pytest.approx(0)
    assert control.paused == 1


def test_the_control_is_timed_throughout_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows drift and one row does not, as on a hot chip: the curve's source says it."""

    class Bench:
        length = 128

        def __init__(self) -> None:
            self.passes, self.seen = 0, list[int]()

        def verify(self, rows: int) -> float:
            self.passes += 1
            self.seen.append(rows)
            return 0.01 if rows == 1 else 0.037 * (1 + self.passes / 300)

        def draft_pass(self) -> None:
            return None

        tree_pass = draft_pass

        def run_ahead(self) -> list[float]:
            return [0.01]

        searches = ()

    bench: Any = Bench()
    control = Control(lambda: bench.verify(CONTROL_ROWS), allowance=0)
    times = _repeat([bench], (1, 2, 4), budget=1e9, limit=1e9, control=control, clock=lambda: 0.0)
    assert bench.seen.count(CONTROL_ROWS) == 15, "not in the warm-up"
    assert control.drift > 0.1
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    curve = calibrate._curve(None, None, [bench], times, control)
    assert str(control) in curve.source
    assert "the times of one row differ by 0%" in curve.source
