"""Time in which passes are under way, and results that are read when they are done."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Generic, TypeVar

T = TypeVar("T")


class BusyTime:
    """Seconds between `begin` and `end`; where several overlap, each moment counts once."""

    def __init__(self) -> None:
        self._seconds = self._since = 0.0
        self._under_way = 0

    @property
    def seconds(self) -> float:
        """The time counted until now."""
        return self._seconds + (perf_counter() - self._since if self._under_way else 0.0)

    def begin(self) -> None:
        """One more pass is under way."""
        if not self._under_way:
            self._since = perf_counter()
        self._under_way += 1

    def end(self) -> None:
        """One pass less is under way."""
        self._under_way -= 1
        if not self._under_way:
            self._seconds += perf_counter() - self._since


class UnderWay(Generic[T]):
    """A result that the device is computing; from now until it is read counts as busy time.

    wait: waits for the device and gives the result.
    """

    __slots__ = ("_busy", "_wait")

    def __init__(self, busy: BusyTime, wait: Callable[[], T]) -> None:
        self._busy, self._wait = busy, wait
        busy.begin()

    def read(self) -> T:
        """See `interfaces.Pending`."""
        try:
            return self._wait()
        finally:
            self._busy.end()
