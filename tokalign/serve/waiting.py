"""Requests that have not been started, in their order. Every one of them gets an end."""

from __future__ import annotations

from threading import Event, Lock

from tokalign.serve.admission import Refusal
from tokalign.serve.job import Job


class WaitingRoom:
    """Where requests wait; any thread may use it. most: bodies of which some wait; one more is
    refused, or a single body of many choices would keep everybody else out.

    Only whoever takes a request out ends or starts it, so no request gets two ends.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock, self._news = Lock(), Event()
        self._jobs: dict[Event, list[Job]] = {}  # of each body; guarded by the lock
        self.is_closed = False

    def __len__(self) -> int:
        return len(self.all())

    def enter(self, job: Job) -> None:
        """Let a request wait. Raises: Refusal if too many do, or at the end."""
        with self._lock:
            if self.is_closed:
                raise end_of_service()
            others = self._jobs.keys() - {job.request.abandoned}
            if len(others) >= self._most:
                raise Refusal(
                    429,
                    f"{len(others)} requests are waiting already; try again later",
                    code="queue_full",
                    headers={"Retry-After": "1"},
                )
            self._jobs.setdefault(job.request.abandoned, []).append(job)
        self.wake()

    def all(self) -> list[Job]:
        """Those that wait now."""
        with self._lock:
            return [job for jobs in self._jobs.values() for job in jobs]

    def take(self, job: Job) -> bool:
        """Take a request out. Returns: whether it was there; another thread may have ended it."""
        with self._lock:
            jobs = self._jobs.get(job.request.abandoned, [])
            is_there = job in jobs
            if is_there:
                jobs.remove(job)
            if not jobs:
                self._jobs.pop(job.request.abandoned, None)
            return is_there

    def end(self, job: Job, error: Exception) -> bool:
        """Take a request out and end it with an error. Returns: as `take`."""
        is_there = self.take(job)
        if is_there:
            job.put(error)
        return is_there

    def close(self) -> None:
        """Refuse all requests that wait or arrive."""
        self.is_closed = True
        for job in self.all():
            self.end(job, end_of_service())
        self.wake()

    def wake(self) -> None:
        """Say that something has changed."""
        self._news.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a change since the last call. Returns: whether there is one."""
        has_news = self._news.wait(seconds)
        self._news.clear()  # whoever waits looks at everything afterwards
        return has_news


def end_of_service() -> Refusal:
    """What every request gets when the server ends."""
    return Refusal(503, "the server is shutting down")
