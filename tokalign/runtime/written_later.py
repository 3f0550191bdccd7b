"""What is to be written is written by a thread of its own, now and then, and at the end at last.

Whoever decodes does not wait for a disk. What is written is asked for after every request; it is
written at once if nothing was for `_PAUSE` seconds, else after that pause, together with what was
asked for meanwhile. When the process ends in an orderly way, all of it is written before.
"""

from __future__ import annotations

import atexit
from threading import Condition, Lock, Thread
from time import sleep
from typing import Protocol

_PAUSE = 10.0
"""Seconds between two times of writing. A process that is killed loses what it learned since."""


class Saved(Protocol):
    """What can be written: it knows where, and whether anything is new."""

    def save(self) -> None:
        """Write what is new. It has an error told to the user, and raises none."""


class WrittenLater:
    """Writes what it is asked to write. Several threads may ask.

    pause: seconds between two times of writing.
    """

    def __init__(self, pause: float = _PAUSE) -> None:
        self._pause = pause
        self._due: dict[int, Saved] = {}
        self._asked, self._writing = Condition(), Lock()
        self._thread: Thread | None = None

    def ask(self, one: Saved) -> None:
        """Have it written soon. Returns at once."""
        with self._asked:
            self._due[id(one)] = one
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="tokalign writes", daemon=True)
                self._thread.start()
            self._asked.notify()

    def write_now(self) -> None:
        """Write all that was asked for, and wait for what is being written."""
        with self._writing:
            with self._asked:
                due, self._due = self._due, {}
            for one in due.values():
                one.save()

    def _run(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._due)
            self.write_now()
            sleep(self._pause)


LATER = WrittenLater()
"""That of this process."""

atexit.register(LATER.write_now)
