"""Writing a file whole or not at all.

The content is written under a temporary name in the same folder, synced to the disk and renamed.
Whatever happens in between, the path holds the old file or the new one, never a part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokalign.errors import UsageError

TEMPORARY_SUFFIX = ".partial"
"""How the temporary names end. Only a killed process leaves such a file."""

_REMEDY = "choose a folder that exists and that you may write to"


def write_file(
    path: Path, content: str | bytes, *, parents: bool = False, remedy: str = _REMEDY
) -> None:
    """Write bytes as they are, or text as UTF-8.

    parents: make the folders that are missing. remedy: what the user can do if this fails.
    Raises: UsageError.
    """
    data = content.encode() if isinstance(content, str) else content
    with appearing(path, parents=parents, remedy=remedy) as temporary:
        temporary.write_bytes(data)


@contextmanager
def appearing(path: Path, *, parents: bool = False, remedy: str = _REMEDY) -> Iterator[Path]:
    """Give a temporary path; what the body writes there appears at `path` when the body ends.

    The body does nothing but write: every OSError in it is taken for a failed write.
    parents, remedy: see `write_file`. Raises: UsageError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path} cannot be written ({reason}); {remedy}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
