"""A lock file, so that two processes do not write the same files."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokalign.atomic_file import unwritable
from tokalign.errors import UsageError


@contextmanager
def locked(path: Path, doing: str, remedy: str) -> Iterator[None]:
    """Hold the lock of a file, which is made and says who holds it.

    doing: what the holder does, and remedy: what a second process can do, for the error.
    Raises: UsageError if another process holds it, or if the file cannot be written; OutputError
        for a full disk.
    """
    try:
        file = path.open("a+")
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise UsageError(f"{holder} is {doing}; {remedy}") from None
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
        except OSError as error:
            raise unwritable(path, error) from error
        yield
