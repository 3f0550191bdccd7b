"""Time in passes: what overlaps counts once, so that no round spends more in them than it took."""

from __future__ import annotations

import pytest

from tokalign.runtime.mlx import session
from tokalign.runtime.mlx.session import BusyTime, UnderWay


class Clock:
    """Shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(session, "perf_counter", found)
    return found


def test_time_in_which_passes_overlap_counts_once(clock: Clock) -> None:
    time = BusyTime()
    time.begin()
    clock.now = 1.0
    time.begin()
    clock.now = 2.0
    time.end()
    assert time.seconds == 2.0
    clock.now = 3.0
    time.end()
    clock.now = 7.0
    assert time.seconds == 3.0


def test_a_result_counts_from_its_start_until_it_is_read_even_if_reading_fails(
    clock: Clock,
) -> None:
    def fail() -> None:
        clock.now = 2.0
        raise KeyboardInterrupt

    time = BusyTime()
    result = UnderWay(time, fail)
    with pytest.raises(KeyboardInterrupt):
        result.read()
    clock.now = 9.0
    assert time.seconds == 2.0
