"""A clock for measurements, which moves by the same time whenever it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

_MEASURING = ("evaluate.calibrate", "evaluate.timed_passes")


@contextmanager
def ticking(seconds: float = 0.005) -> Iterator[None]:
    """What passes cost is measured by this clock, so on any machine the same is timed as often."""
    ticks = count()
    with pytest.MonkeyPatch.context() as patch:
        for module in _MEASURING:
            patch.setattr(f"tokalign.{module}.perf_counter", lambda: seconds * next(ticks))
        yield
