"""Processes that apply pure functions to tasks, each with a state that is costly to make.

Results come in the order of the tasks, whatever the number of processes. Processes are spawned, so
that they work alike on Linux and macOS: functions and states have to be importable or picklable.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

Task = tuple[Any, ...]

Apply = Callable[[Callable[..., Any], Iterable[Task]], Iterator[Any]]
"""(function, tasks) -> function(state, *task) of each task, in their order."""

_AHEAD = 2
"""Tasks waiting or done per process: what bounds the memory of a long stream of tasks."""

_state: Any = None
_most_jobs = 0


@contextmanager
def workers(jobs: int, make_state: Callable[[], Any]) -> Iterator[Apply]:
    """Open `jobs` processes; with one job everything happens in this process.

    make_state: called once in each process.
    """
    if jobs == 1:
        state = make_state()
        yield lambda function, tasks: (function(state, *task) for task in tasks)
        return
    global _most_jobs
    _most_jobs = max(_most_jobs, jobs)
    pool = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_start, initargs=(make_state,)
    )
    try:
        yield lambda function, tasks: _apply(pool, jobs, function, tasks)
    finally:
        pool.shutdown(cancel_futures=True)


def peak_memory() -> int:
    """What this process and its workers have held at most, in bytes.

    An upper bound: its own peak, and for each worker that of the largest, as if all were at once.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (own + _most_jobs * largest) * (1 if sys.platform == "darwin" else 1024)


def _apply(
    pool: ProcessPoolExecutor, jobs: int, function: Callable[..., Any], tasks: Iterable[Task]
) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        waiting.append(pool.submit(_run, function, task))
        if len(waiting) > _AHEAD * jobs:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _run(function: Callable[..., Any], task: Task) -> Any:
    return function(_state, *task)


def _start(make_state: Callable[[], Any]) -> None:
    global _state
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _state = make_state()


def _die_with_parent() -> None:
    """A killed build leaves no process behind: the pool's own pipes would keep them waiting."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
