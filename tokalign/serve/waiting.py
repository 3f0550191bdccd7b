"""Requests that have not been started, in their order. Every one of them is told an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from tokalign.serve.admission import Refusal
from tokalign.serve.job import Answer, Item, Key
from tokalign.serve.request import Asked


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that has not been started. put: tells whoever waits for its answer.

    is_submitted: to those who prepare it. result: of that, once they have.
    """

    asked: Asked
    put: Callable[[Item], None]
    key: Key
    is_submitted: bool = False
    result: Answer | Exception | None = None


class WaitingRoom:
    """Where requests wait; any thread may use it. most: one more is refused.

    Whoever takes a request out tells how it goes on. So no request is told two ends.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()  # guards the rest
        self._requests: list[Waiting] = []
        self._has_news = False
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, one: Waiting) -> None:
        """Let a request wait. Raises: Refusal if too many do, or at the end."""
        with self._changed:
            if self.is_closed:
                raise end_of_service()
            if len(self._requests) >= self._most:
                raise Refusal(
                    429,
                    f"{len(self._requests)} requests are waiting already; try again later",
                    code="queue_full",
                    headers={"Retry-After": "1"},
                )
            self._requests.append(one)
        self.wake()

    def all(self) -> list[Waiting]:
        """Those that wait now."""
        with self._changed:
            return list(self._requests)

    def take(self, one: Waiting) -> bool:
        """Take a request out. Returns: whether it was there; another thread may have ended it."""
        with self._changed:
            is_there = one in self._requests
            if is_there:
                self._requests.remove(one)
            return is_there

    def end(self, one: Waiting, error: Exception) -> bool:
        """Take a request out and end it with an error. Returns: as `take`."""
        is_there = self.take(one)
        if is_there:
            one.put(error)
        return is_there

    def close(self) -> None:
        """Refuse whoever waits, and whoever comes."""
        self.is_closed = True
        for one in self.all():
            self.end(one, end_of_service())
        self.wake()

    def wake(self) -> None:
        """Say that something has changed."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Return when something has changed since the last call, or after so many seconds.

        Returns: whether something has.
        """
        with self._changed:
            has_news = self._changed.wait_for(lambda: self._has_news, seconds)
            self._has_news = False
            return has_news


def end_of_service() -> Refusal:
    """What everybody is told at the end."""
    return Refusal(503, "the server is shutting down")
