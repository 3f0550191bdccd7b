"""Waiting for other processes, acting as another user, and a disk that is full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

HUNG = 300
"""Seconds after which a process is taken to hang: no bound on how fast it has to be."""

NOT_NOHUP = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="nohup: a terminal may be closed"
)
"""Where the suite runs under nohup, so do the processes that it starts."""


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + HUNG
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never held")
        time.sleep(0.005)


def is_running(process: int) -> bool:
    """Whether a process goes on; one that has ended and that nobody waits for does not."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


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


@contextmanager
def small_disk(largest_file: int) -> Iterator[None]:
    """A disk that is full: no file may become larger than a bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
