"""How many ids of a prompt are read in one step, so that a step takes about a second.

Between two steps a client may leave, Ctrl-C counts, and other requests have their rounds. The
number is a power of two. It changes only where a step took less than half the time or more than
twice the time, so equal runs on a machine read in equal steps as a rule.
"""

from __future__ import annotations

from typing import Any

from tokalign.runtime.mlx.weights import once_per_model

STEP_SECONDS = 1.0
_FIRST, _LEAST = 64, 32  # 16 rows take more than half the time of 32 on a CPU


class Pace:
    """The ids of the next step of one model."""

    def __init__(self) -> None:
        self._ids = _FIRST

    def step(self, most: int) -> int:
        """How many ids the next step reads, if it may read `most` (1 or more)."""
        return min(self._ids, most)

    def learn(self, ids: int, seconds: float) -> None:
        """Note the time of a step of `ids` ids. A shorter step than the pace's own tells little."""
        if seconds > 2 * STEP_SECONDS and ids <= self._ids:
            self._ids = max(_LEAST, self._ids // 2)
        while 2 * ids > self._ids and 2 * seconds < STEP_SECONDS and self._ids < 1 << 20:
            ids, seconds, self._ids = 2 * ids, 2 * seconds, 2 * self._ids


@once_per_model
def pace_of(_model: Any) -> Pace:
    """The pace of a model, which all sessions of it share."""
    return Pace()
