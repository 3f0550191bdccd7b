"""Locks: one process at a time makes a file or works in a folder, and who waits learns for whom.

A lock is a file with the name of its holder, held until the process lets go of it or dies.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from tokalign.errors import UsageError
from tokalign.storage import parents_of, unwritable, writing_to

Told = Callable[[str], object] | None
_POLL = 0.2  # seconds between two looks at a lock; a wait inside `flock` would hear no signal


@contextmanager
def locked(
    path: Path, doing: str, remedy: str = "wait until it has ended", *, waits: Told = None
) -> Iterator[None]:
    """Hold the lock of a file, which is made, with its folders, and says who holds it.

    doing: what the holder does, and remedy: what a second process can do, for the error.
    waits: is told who holds it, and it is waited for; without it, that is an error.
    On a full disk the holder stays without a name. Raises: UsageError if another process holds it;
    as `write_file`, also on a file system without locks.
    """
    told = False
    while True:  # the holder that was waited for may have removed the file
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # it is cleared
            file = os.open(path, flags, 0o666)
        try:
            if not _is_held(file, path):
                if not os.fstat(file).st_nlink:
                    continue
                with suppress(OSError):
                    os.ftruncate(file, 0)
                    os.pwrite(file, f"process {os.getpid()} on {platform.node()}".encode(), 0)
                yield
                return
            holder = os.pread(file, 1 << 10, 0).decode(errors="replace") or "another process"
        finally:
            os.close(file)
        if waits is None:
            raise UsageError(f"{holder} is {doing}; {remedy}")
        if not told:
            waits(f"{holder} is {doing}, which is waited for")
        told = True
        sleep(_POLL)


def _is_held(file: int, path: Path) -> bool:
    """Whether another process holds the lock of an open file; else this one does from now on."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        remedy = "choose a folder on a file system that has locks"
        raise unwritable(path, error, remedy) from error
    return False


@contextmanager
def making(path: Path, doing: str, waits: Told = None) -> Iterator[None]:
    """Hold a lock beside a file that the body makes; none is left. waits, errors: see `locked`.
    After a wait the file may be there."""
    lock = path.with_name(f".{path.name}.lock")
    with parents_of(lock), locked(lock, f"{doing} {path}", waits=waits):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
