"""Writing a file whole or not at all, and locks for those who write.

The content is written under a temporary name in the same folder, synced to the disk and renamed.
Whatever happens in between, the path holds the old file or the new one, never a part of it, and a
write that fails leaves no new folders.
Pipes and devices are refused: the rename would put a file in their place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokalign.errors import OutputError, TokalignError, UsageError

TEMPORARY_SUFFIX = ".partial"
"""How the temporary names end. Only a killed process leaves such a file."""

_REMEDY = "choose a folder that exists and that you may write to"
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def write_file(
    path: Path, content: str | bytes, *, parents: bool = False, remedy: str = _REMEDY
) -> None:
    """Write bytes as they are, or text as UTF-8.

    parents: make the folders that are missing. remedy: what the user can do if this fails.
    Raises: UsageError; OutputError for a disk that is full or broken.
    """
    data = content.encode() if isinstance(content, str) else content
    with appearing(path, parents=parents, remedy=remedy) as temporary:
        temporary.write_bytes(data)


@contextmanager
def appearing(
    path: Path, *, parents: bool = False, remedy: str = _REMEDY, sync: bool = True
) -> Iterator[Path]:
    """Give a temporary path; what the body writes there appears at `path` when the body ends.

    The body does nothing but write: every OSError in it is taken for a failed write.
    parents, remedy, errors: see `write_file`.
    sync: wait until the content is on the disk. Without it, a power cut can leave a part of the
        file at `path`, so that whoever reads it has to notice that.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}"  # `.` has no name
    made = [folder for folder in path.parents if parents and not folder.exists()]
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is not a regular file")
        yield temporary
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error, remedy) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()  # it stays unless nothing was written into it


def make_folder(path: Path, *, remedy: str = _REMEDY) -> None:
    """Make a folder for the results of long work, and those that it lies in, before the work.

    Raises: as `write_file`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error, remedy) from error


def require_writable(path: Path, *, parents: bool = False, remedy: str = _REMEDY) -> None:
    """Find out before long work whether its result can be written here, as far as that can be said.

    parents, remedy: see `write_file`. Nothing is made.
    Raises: UsageError for a folder, and for a file in a folder that is not there or takes none.
    """
    missing = [folder for folder in path.absolute().parents if parents and not folder.exists()]
    folder = missing[-1].parent if missing else path.parent
    for number, is_so in (
        (errno.EISDIR, path.is_dir()),
        (errno.ENOENT, not folder.exists()),
        (errno.ENOTDIR, not folder.is_dir()),
        (errno.EACCES, not os.access(folder, os.W_OK | os.X_OK)),
    ):
        if is_so:
            raise unwritable(path, OSError(number, os.strerror(number)), remedy)


def unwritable(path: Path, error: OSError, remedy: str = _REMEDY) -> TokalignError:
    """The error that says why a path cannot be written: OutputError for the disk, else UsageError.

    remedy: what the user can do, besides making room on a disk that is full.
    """
    problem = f"{path} cannot be written ({error.strerror or error})"
    if error.errno in _OF_THE_DISK:
        return OutputError(f"{problem}; make room on that disk, or {remedy}")
    return UsageError(f"{problem}; {remedy}")


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
