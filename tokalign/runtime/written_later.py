"""Files are written by a thread of their own, so that decoding does not wait for a disk.

Writing is asked for after every request. It happens at once if nothing was written for `_PAUSE`
seconds, else after that pause, together with what was asked for meanwhile. When the process ends in
an orderly way, everything is written before.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Timer
from time import monotonic
from typing import TypeAlias

_PAUSE = 10.0
"""Seconds between two times of writing. A process that is killed loses what it learned since."""

Save: TypeAlias = Callable[[], None]
"""Writes what is new to a file. It reports errors to the user, and raises none."""


class WrittenLater:
    """Writes what it is asked to, by several threads. pause: seconds between two writings."""

    def __init__(self, pause: float = _PAUSE) -> None:
        self._pause, self._next = pause, 0.0
        self._due = set[Save]()
        self._asking, self._writing = Lock(), Lock()
        self._timer: Timer | None = None

    def ask(self, save: Save) -> None:
        """Have it called soon. Returns at once."""
        with self._asking:
            self._due.add(save)
            if self._timer is None:
                self._timer = Timer(max(0.0, self._next - monotonic()), self.write_now)
                self._timer.daemon = True
                self._timer.start()

    def write_now(self) -> None:
        """Write everything that was asked for, and wait for what is being written."""
        with self._writing:
            with self._asking:
                due, self._due, self._timer = self._due, set(), None
                self._next = monotonic() + self._pause
            for save in due:
                save()


LATER = WrittenLater()
"""The writer of this process."""


@atexit.register
def _write_the_rest() -> None:
    with suppress(KeyboardInterrupt):  # of somebody who waits for no disk
        LATER.write_now()
