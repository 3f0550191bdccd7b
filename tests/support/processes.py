"""Waiting for what another process does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HUNG = 300
"""Seconds after which a process is taken to hang: no bound on how fast it has to be."""


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + _HUNG
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never held")
        time.sleep(0.005)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything, so act as a user who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
