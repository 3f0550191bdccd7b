"""What overlaps counts once: else a round could spend more time in passes than it took."""

from __future__ import annotations

from time import perf_counter, sleep

import pytest

from tokalign.runtime.mlx.busy import BusyTime


def test_overlapping_passes_count_once() -> None:
    busy, began = BusyTime(), perf_counter()
    busy.begin()
    sleep(0.01)
    busy.begin()
    busy.end()
    busy.begin()
    busy.end()
    sleep(0.01)
    assert 0.02 <= busy.seconds <= perf_counter() - began
    busy.end()
    took, counted = perf_counter() - began, busy.seconds
    assert 0.02 <= counted <= took
    sleep(0.01)
    assert busy.seconds == pytest.approx(counted)
