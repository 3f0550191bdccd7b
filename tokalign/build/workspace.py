"""A folder of finished intermediate files, from which a killed build goes on.

A file appears whole under its name or not at all. Its name is a digest of all that it was made
from, so what lies there can be trusted whatever has changed since.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.errors import UsageError


@contextmanager
def open_workspace(folder: Path | None) -> Iterator[Path]:
    """Make or reopen a workspace, a temporary one if `folder` is None.

    It is deleted at the end, and left as it is when the body raises or the process dies.
    Raises: UsageError if another process is using the folder.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tokalign-") as temporary:
            yield Path(temporary)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder} is in use by another build; wait for it or choose another folder"
            ) from None
        for unfinished in folder.glob("*.partial"):
            unfinished.unlink()
        yield folder
        shutil.rmtree(folder)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A temporary name; what is written there appears under `path` when the body is done."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def digest(*facts: Any) -> str:
    """A name for what follows from these facts (texts, numbers, lists of them)."""
    return sha256(msgpack.packb(facts)).hexdigest()[:32]
