"""Writing a file whole or not at all.

The content is written under a temporary name in the same folder, synced to the disk and renamed.
Whatever happens in between, the path holds the old file or the new one, never a part of it, and a
write that fails leaves no new folders.
Pipes and devices are refused: the rename would put a file in their place.
"""

from __future__ import annotations

import errno
import os
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    made = [folder for folder in path.parents if parents and not folder.exists()]
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_irregular(path)
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


def require_writable(path: Path, *, remedy: str = _REMEDY) -> None:
    """Check that a file could be written, before the hours that its content takes.

    Nothing is made. Raises: as `write_file` with `parents`, except for what only writing shows.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        _refuse_irregular(path)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable(path, error, remedy) from error


def _refuse_irregular(path: Path) -> None:
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is not a regular file")


def unwritable(path: Path, error: OSError, remedy: str = _REMEDY) -> TokalignError:
    """The error that says why a path cannot be written: OutputError for the disk, else UsageError.

    remedy: what the user can do, besides making room on a disk that is full.
    """
    problem = f"{path} cannot be written ({error.strerror or error})"
    if error.errno in _OF_THE_DISK:
        return OutputError(f"{problem}; make room on that disk, or {remedy}")
    return UsageError(f"{problem}; {remedy}")
