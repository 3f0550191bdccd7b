"""Requests that have not been started, in their order. Every one of them is told an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Condition

from tokalign.serve.admission import Refusal
from tokalign.serve.job import Item, Key, Listener, Prepared
from tokalign.serve.request import Asked


class State(StrEnum):
    """How far a request that has not been started is."""

    ARRIVED = "arrived"
    PREPARING = "being prepared"
    PREPARED = "prepared"


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that has not been started. result: of its preparation, once it is PREPARED."""

    asked: Asked
    listener: Listener
    key: Key
    state: State = State.ARRIVED
    result: Prepared | Exception | None = None


class WaitingRoom:
    """Where requests wait; any thread may use it. most: one more is refused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()  # guards the rest
        self._requests: list[Waiting] = []
        self._has_news = False
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, asked: Asked, put: Callable[[Item], None], key: Key) -> None:
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
            self._requests.append(Waiting(asked, Listener(put), key))
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

    def close(self) -> None:
        """Refuse whoever waits, and whoever comes."""
        with self._changed:
            self.is_closed = True
            requests, self._requests = self._requests, []
        for one in requests:
            one.listener.end(end_of_service())
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
