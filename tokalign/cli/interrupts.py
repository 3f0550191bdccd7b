"""Ctrl-C while an answer is under way: noted first, obeyed at once the second time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Ctrl-C while an answer is under way.

    The first one asks for the end of the answer, the second one ends it at once.
    between_steps: whether it ended between two steps, so that what was read is known.
    """

    def __init__(self) -> None:
        self.asked = self.between_steps = False

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        """Take a signal. Raises: KeyboardInterrupt at the second one."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self, _ids: int) -> None:
        """Raises: KeyboardInterrupt if Ctrl-C was pressed; by then a step of a prompt is done."""
        if self.asked:
            self.between_steps = True
            raise KeyboardInterrupt


@contextmanager
def interrupts_noted() -> Iterator[Interrupts]:
    """Have Ctrl-C noted while the body runs, instead of raising. Off the main thread, nothing."""
    found = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield found  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, found.handle)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
