"""A folder of finished intermediate files, from which a killed build resumes.

A file appears whole or not at all, unless the power fails: the files carry checksums for that
(`runs.py`). Its name is a digest of everything it was made from, so a file that is found whole
can be used whatever has changed since.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from tokalign.atomic_file import TEMPORARY_SUFFIX, locked, unwritable
from tokalign.errors import UsageError

_LOCK = "counting.lock"
_REMEDY = "choose folders that you may write to with --output or --workspace"


@contextmanager
def open_workspace(folder: Path | None) -> Iterator[Path]:
    """Make or reopen a workspace, a temporary one if `folder` is None.

    It is deleted when the body ends, and when a generator that holds it open is closed early. When
    the body raises or the process dies, the finished files stay.
    Raises: UsageError if another process is using the folder, if it holds other files, or if it
        cannot be written to; OutputError for a full disk.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tokalign-") as temporary:
            yield Path(temporary)
        return
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, _REMEDY) from error
    require_workspace(folder, _LOCK)
    with locked(folder / _LOCK, f"building in {folder}", "wait for it or choose another folder"):
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


def require_workspace(folder: Path, mark: str) -> None:
    """Check that a folder is empty or a workspace: at the end it is deleted, whatever is in it.

    mark: the name of the first file that a build writes there.
    Raises: UsageError for a folder with other files, which may be somebody's documents.
    """
    try:
        names = [path.name for path in folder.iterdir() if not path.name.startswith(f".{mark}.")]
    except OSError as error:
        raise unwritable(folder, error, _REMEDY) from error
    if names and mark not in names:
        raise UsageError(
            f"{folder} holds files that no build has left, and a workspace is deleted at the end; "
            "give a folder of its own with --workspace"
        )


def _delete(folder: Path, made: list[Path]) -> None:
    """Delete a workspace, and those of the folders made for it that are empty."""
    shutil.rmtree(folder)
    with suppress(OSError):
        for path in made:
            if path != folder:
                path.rmdir()


@contextmanager
def sole_process(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock, so that two processes that were given the same share do not meet in its files.

    Raises: UsageError if another process holds it.
    """
    remedy = (
        "give each machine ranks of its own with --local-rank-offset, or wait until it has ended"
    )
    with locked(folder / f"{name}.lock", f"doing {name} in {folder}", remedy):
        yield


def digest(*facts: object) -> str:
    """A name for a file that is made from these facts (texts, numbers, bytes, lists of them)."""
    return sha256(msgpack.packb(facts)).hexdigest()[:32]
