"""A control pass: it tells whether a machine slows down while it is measured, and lets it cool.

A chip that grows hot may slow down wide passes and leave narrow ones as they were (elsewhere four
rows went from 37 to 50 ms while one row stayed at its time, lablup/mlxcel issue 1182). Every count
of rows is timed in every repetition, so all of them suffer alike, but a ratio of two still changes.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import sleep

CONTROL_ROWS = 8
"""Rows of the control pass: enough that a hot chip shows, few enough to be cheap everywhere."""

_FIRST = 3
"""The first checks, whose median is the time of a cool machine."""
_SLOWED = 1.1
"""A control pass this many times slower than at first asks for a pause."""
_PAUSE = 1.0
_VAIN_PAUSES = 2
"""After so many pauses that helped little, heat is not the reason, and no more are made."""


class Control:
    """Times one pass again and again.

    time: makes the pass, and returns its seconds. allowance: seconds of pauses in all, at most.
    """

    def __init__(
        self,
        time: Callable[[], float],
        *,
        allowance: float,
        sleep: Callable[[float], object] = sleep,
    ) -> None:
        self._time = time
        self._sleep = sleep
        self._allowance = allowance
        self._vain = 0
        self._seconds: list[float] = []
        self.paused = 0.0

    def check(self) -> None:
        """Time the pass; pause while it is slow, as long as that helps."""
        seconds = self._time()
        self._seconds.append(seconds)
        cool = median(self._seconds[:_FIRST])
        while seconds > _SLOWED * cool and self._vain < _VAIN_PAUSES:
            pause = min(_PAUSE, self._allowance - self.paused)
            if pause <= 0:
                return
            self._sleep(pause)
            self.paused += pause
            before, seconds = seconds, self._time()
            self._vain += seconds > (before + cool) / 2

    @property
    def drift(self) -> float:
        """How much slower the pass was in the last third of the checks than in the first.

        0.35 is 35 % slower. Before any check it is 0.
        """
        third = -(-len(self._seconds) // 3)
        if not third:
            return 0.0
        return median(self._seconds[-third:]) / median(self._seconds[:third]) - 1

    def __str__(self) -> str:
        return (
            f"a control of {CONTROL_ROWS} rows, timed throughout, drifted by {self.drift:+.0%}, "
            f"with pauses of {self.paused:.1f} s to cool"
        )
