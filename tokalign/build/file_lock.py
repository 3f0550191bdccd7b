"""A lock file, so that two processes do not write the same files."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokalign.atomic_file import unwritable
from tokalign.errors import UsageError


@contextmanager
def locked(path: Path, doing: str, remedy: str) -> Iterator[None]:
    """Hold the lock of a file, which is made, with its folders, and says who holds it.

    doing: what the holder does, and remedy: what a second process can do, for the error.
    On a full disk a lock file that is there already is locked all the same, without a name in it,
    so that what fills the disk can be deleted.
    Raises: UsageError if another process holds it, if the file cannot be written, or on a file
        system without locks; OutputError for a full disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 1 << 10, 0).decode(errors="replace") or "another process"
            raise UsageError(f"{holder} is {doing}; {remedy}") from None
        except OSError as error:
            raise UsageError(
                f"{path} cannot be locked ({error.strerror}); choose a folder on a file system "
                "that has locks"
            ) from error
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        os.close(file)
