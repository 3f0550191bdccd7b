"""Measuring a cost curve: how long it goes on, by a clock of its own."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from tokalign.evaluate.calibrate import _repeat


class Bench:
    """A pair whose passes are said to take the given times in turn, on a clock of seconds."""

    def __init__(self, *seconds: float) -> None:
        self.now, self._seconds = 0.0, cycle(seconds)

    def clock(self) -> float:
        return self.now

    def verify(self, rows: int) -> float:
        self.now += 1.0
        return next(self._seconds)

    def draft_pass(self) -> None:
        return None

    def run_ahead(self) -> list[float]:
        return []


@pytest.mark.parametrize(
    ("seconds", "repetitions"),
    [((0.1,), 4), ((0.1, 0.101), 4), ((0.1,) * 6 + (0.9,), 4), ((0.1, 0.3), 14)],
)
def test_a_disturbed_measurement_takes_three_times_its_budget(
    seconds: tuple[float, ...], repetitions: int
) -> None:
    """Every repetition takes a second of a budget of five; the first is a warm-up.

    A single slow pass is no disturbance: the quartiles do not see it.
    """
    bench: Any = Bench(*seconds)
    times = _repeat([bench], [1], 5.0, lambda _: None, bench.clock)
    assert len(times[bench, "rows", 1]) == repetitions


def test_a_quiet_measurement_ends_after_fifteen_repetitions() -> None:
    bench: Any = Bench(0.1)
    assert len(_repeat([bench], [1], 1e9, lambda _: None, bench.clock)[bench, "rows", 1]) == 15
