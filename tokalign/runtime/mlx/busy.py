"""Time in which passes are under way."""

from __future__ import annotations

from time import perf_counter


class BusyTime:
    """Seconds between `begin` and `end`; of what overlaps each moment counts once."""

    def __init__(self) -> None:
        self._seconds = self._since = 0.0
        self._under_way = 0

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._seconds + (perf_counter() - self._since if self._under_way else 0.0)

    def begin(self) -> None:
        if not self._under_way:
            self._since = perf_counter()
        self._under_way += 1

    def end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._seconds += perf_counter() - self._since
