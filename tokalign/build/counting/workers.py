"""Spawned processes that apply functions to tasks, each with a state that is costly to make."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol, TypeVar

from tokalign.build.counting.word_encoder import BYTES_PER_WORD, MAX_WORDS
from tokalign.child_processes import end_pool, end_with_parent, safe_path, starting
from tokalign.errors import OutputError, UsageError

Result = TypeVar("Result")
Task = tuple[object, ...]
"""The arguments of one call, after the state."""

MEMORY = 2 << 30
"""Bytes that all processes of a count may hold together, by default."""

# Measured, and rounded up.
_PROCESS = 80 << 20  # an interpreter with numpy
_PER_TOKEN = 1 << 10  # a tokenizer with its merges, per token
_SORTING = 130 << 20  # a shard or a range while it is sorted

_FEWEST_WORDS = 1 << 16

_AHEAD = 2
"""Tasks waiting or done per process. It bounds the memory that a long stream of tasks takes."""

_WORTH_A_PROCESS = 1 << 21  # bytes of a corpus; a process takes a second to start

_state: object = None
_most_jobs = 0


def jobs_for(corpus_bytes: int) -> int:
    """The usual number of processes: one per core, fewer for a small corpus."""
    return min(os.cpu_count() or 1, 1 + corpus_bytes // _WORTH_A_PROCESS)


def plan_processes(memory: int, *, jobs: int, vocabulary_size: int) -> tuple[int, int]:
    """How many processes (at most `jobs`) fit in `memory` bytes, and how many words each may keep.
    Raises: UsageError if one process does not fit."""
    process = _PROCESS + _PER_TOKEN * vocabulary_size
    least = process + _SORTING + _FEWEST_WORDS * BYTES_PER_WORD
    if memory < least:
        raise UsageError(
            f"counting with this tokenizer takes {-(-least // 10**6)} MB, "
            f"more than --memory allows ({memory // 10**6} MB); allow at least that"
        )
    # With several jobs, the process that starts them needs memory too.
    while jobs > 1 and process + jobs * least > memory:
        jobs -= 1
    others = process * jobs if jobs > 1 else 0
    for_words = (memory - process - others - jobs * _SORTING) // jobs
    return jobs, min(MAX_WORDS, for_words // BYTES_PER_WORD)


class Apply(Protocol):
    """Applies a function to many tasks."""

    def __call__(
        self, function: Callable[..., Result], tasks: Iterable[Task], /
    ) -> Iterator[Result]:
        """`function(state, *task)` of each task, in the order of the tasks."""


@contextmanager
def workers(jobs: int, make_state: Callable[[], object]) -> Iterator[Apply]:
    """Open `jobs` processes, with a state each; with one job everything happens in this process.
    Raises: OutputError in the body if one of the processes is killed."""
    if jobs == 1:
        state = make_state()
        yield lambda function, tasks: (function(state, *task) for task in tasks)
        return
    global _most_jobs
    _most_jobs = max(_most_jobs, jobs)
    # A file, because Python waits for ever to hand more than a pipe holds to a process that died.
    with NamedTemporaryFile() as file, safe_path():
        file.write(pickle.dumps(make_state))
        file.flush()
        pool = ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), initializer=_start, initargs=(file.name,)
        )
        try:
            yield lambda function, tasks: _apply(pool, jobs, function, tasks)
        except BrokenProcessPool as error:
            raise OutputError(
                "a process that counts was killed, as the system does where memory runs out; close "
                "other programs, or in build give less --memory; build goes on from what is "
                "finished"
            ) from error
        except BaseException:  # which does not wait for the tasks under way
            end_pool(pool)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def peak_memory() -> int:
    """In bytes: this process's own peak, and the largest worker's times the number of workers."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (own + _most_jobs * largest) * (1 if sys.platform == "darwin" else 1024)


def _apply(
    pool: ProcessPoolExecutor, jobs: int, function: Callable[..., Result], tasks: Iterable[Task]
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        with starting():  # a process for each of the first tasks
            waiting.append(pool.submit(_run, function, task))
        if len(waiting) > _AHEAD * jobs:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _run(function: Callable[..., Result], task: Task) -> Result:
    return function(_state, *task)


def _start(pickled: str) -> None:
    global _state
    end_with_parent()  # which the pool's own pipes do not do
    _state = pickle.loads(Path(pickled).read_bytes())()
