"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_HUNG = 300
"""Seconds after which a process is taken to hang: no bound on how fast it has to be."""


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + _HUNG
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never held")
        time.sleep(0.005)
