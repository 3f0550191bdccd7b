"""Processes that tokalign starts end with it, and import nothing from the current folder.

Python looks for modules there first when it runs `-m` or `-c`, as multiprocessing does. With
`PYTHONSAFEPATH` in the environment it does not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_SAFE_PATH = "PYTHONSAFEPATH"
_lock = Lock()
_bodies = 0
_before: str | None = None


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the current folder off the path of modules of every process started in the body."""
    global _bodies, _before
    with _lock:
        if not _bodies:
            _before = os.environ.get(_SAFE_PATH)
            os.environ[_SAFE_PATH] = "1"
        _bodies += 1
    try:
        yield
    finally:
        with _lock:
            _bodies -= 1
            if not _bodies:
                del os.environ[_SAFE_PATH]
                if _before is not None:
                    os.environ[_SAFE_PATH] = _before


@contextmanager
def starting() -> Iterator[None]:
    """Processes that are started in the body never see Ctrl-C, which a terminal sends to them too:
    the one that starts them ends them. Else they print a traceback while they import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_once(number: int, _frame: object) -> None:
    """Answer SIGTERM, and SIGHUP of a terminal that is closed, as Ctrl-C is: nothing half-written
    is left. `timeout` sends one twice, and the second one must not stop the clearing."""
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool and its processes, whatever they do. One that sends a result leaves a part of it,
    and the pool waits for the rest until nobody can write it any more, this process included."""
    for process in [*(pool._processes or {}).values()]:
        process.kill()
    if (results := pool._result_queue) is not None:
        results._writer.close()  # type: ignore[attr-defined]
    pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """In a process of multiprocessing: end it with the one that started it, whatever ends that."""
    Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    from multiprocessing import parent_process  # not loaded by commands that start none

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
