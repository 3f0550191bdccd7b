"""A folder of finished intermediate files, from which a killed build goes on.

A file appears whole under its name or not at all. Its name is a digest of all that it was made
from, so what lies there can be trusted whatever has changed since.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.atomic_file import TEMPORARY_SUFFIX
from tokalign.errors import UsageError

_LOCK = "lock"


@contextmanager
def open_workspace(folder: Path | None) -> Iterator[Path]:
    """Make or reopen a workspace, a temporary one if `folder` is None.

    It is deleted at the end, also that of a generator which is closed before its last value. When
    the body raises or the process dies, what was finished stays.
    Raises: UsageError if another process is using the folder.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tokalign-") as temporary:
            yield Path(temporary)
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder} is in use by another build; wait for it or choose another folder"
            ) from None
        for unfinished in folder.glob(f"*{TEMPORARY_SUFFIX}"):
            unfinished.unlink()
        try:
            yield folder
        except GeneratorExit:
            _delete(folder, made)
        except BaseException:
            if all(path.name == _LOCK for path in folder.iterdir()):
                _delete(folder, made)
            raise
        else:
            _delete(folder, made)


def _delete(folder: Path, made: list[Path]) -> None:
    """Delete a workspace, and what is empty of the folders that were made for it."""
    shutil.rmtree(folder)
    with suppress(OSError):
        for path in made:
            if path != folder:
                path.rmdir()


def digest(*facts: Any) -> str:
    """A name for what follows from these facts (texts, numbers, lists of them)."""
    return sha256(msgpack.packb(facts)).hexdigest()[:32]
