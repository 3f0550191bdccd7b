"""A chip that grows hot is let cool while it is measured, as long as that helps."""

from __future__ import annotations

from typing import Any

import pytest

from tokalign.evaluate import calibrate
from tokalign.evaluate.calibrate import CONTROL_ROWS, _drift, _repeat

KEY_ROWS = (1, CONTROL_ROWS)


class HotBench:
    """A target on a chip that every pass heats, and every pause of a second cools by ten passes.

    heat: how much slower wide passes are for each one before. cools: whether pauses help.
    """

    searches = ()

    def __init__(self, heat: float, *, cools: bool = True) -> None:
        self.passes, self.heat, self.cools, self.paused = 0, heat, cools, 0.0

    def verify(self, rows: int) -> float:
        self.passes += 1
        return 0.01 if rows == 1 else 0.037 * (1 + self.heat * self.passes)

    def draft_pass(self) -> None:
        return None

    tree_pass = draft_pass

    def run_ahead(self) -> list[float]:
        return [0.01]

    def sleep(self, seconds: float) -> None:
        self.paused += seconds
        if self.cools:
            self.passes = max(0, self.passes - round(10 * seconds))


def measured(bench: Any, pauses: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(calibrate, "sleep", bench.sleep)
    limits: Any = {"budget": 1e9, "limit": 1e9, "clock": lambda: 0.0}
    return _repeat([bench], KEY_ROWS, pauses=pauses, **limits)


def drift_of(times: Any) -> float:
    return _drift(next(seconds for key, seconds in times.items() if key[2] == CONTROL_ROWS))


def test_a_chip_that_grows_hot_is_let_cool(monkeypatch: pytest.MonkeyPatch) -> None:
    hot, cooled = HotBench(0.02), HotBench(0.02)
    assert drift_of(measured(hot, 0.0, monkeypatch)) > 0.3
    assert drift_of(measured(cooled, 100.0, monkeypatch)) < 0.2
    assert 0 < cooled.paused < 20
    assert hot.paused == 0


def test_waiting_ends_where_it_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has come to stay: a second is lost, and the drift is told."""
    bench: Any = HotBench(0.02, cools=False)
    bench.length = 128
    times = measured(bench, 100.0, monkeypatch)
    assert bench.paused == 1
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    source = calibrate._curve(None, None, [bench], times).source
    assert f"those of {CONTROL_ROWS} rows drifted by {drift_of(times):+.0%}" in source
    assert "the times of one row differ by 0%" in source


def test_a_machine_that_does_not_throttle_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = HotBench(0.0)
    assert drift_of(measured(bench, 100.0, monkeypatch)) == pytest.approx(0)
    assert bench.paused == 0


def test_pauses_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = HotBench(0.5)
    measured(bench, 2.5, monkeypatch)
    assert bench.paused == 2
