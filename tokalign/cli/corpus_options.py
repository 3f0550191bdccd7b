"""From what a user names as a corpus to the files that are read."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokalign.atomic_file import unwritable
from tokalign.cli.streams import reading_stdin
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.sources import Source

_ROOM = "set TMPDIR to a folder with room for all of standard input"


def find_corpus(
    names: Sequence[str], *, stdin: bool, note: Callable[[str], object]
) -> list[Source]:
    """The corpus files that are meant; names, note: as in `find_sources`.

    stdin: whether `-` may stand for lines on standard input. They are kept in a file while the
    command runs, because a corpus is read more than once.
    """
    from tokalign.build.sources import find_sources

    return find_sources(names, stdin=_save_stdin if stdin else None, note=note)


def _save_stdin() -> Path:
    temporary = tempfile.TemporaryDirectory(prefix="tokalign-")
    path = Path(click.get_current_context().with_resource(temporary)) / "stdin.txt"
    try:
        with path.open("wb") as file:
            while chunk := _read_chunk():
                file.write(chunk)
    except OSError as error:
        raise unwritable(path, error, _ROOM) from error
    return path


def _read_chunk() -> bytes:
    with reading_stdin("give a FILE"):
        return sys.stdin.buffer.read(1 << 20)


def read_weights(texts: Sequence[str], files: Sequence[Source]) -> dict[str, float]:
    """Read `NAME=W` options as file name -> weight.

    Raises: UsageError for a text that is not NAME=W with the name of one of the files.
    """
    weights = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        matching = [file.name for file in files if name in (file.name, _stem(file.name))]
        if len(matching) != 1 or not re.fullmatch(r"[0-9]*\.?[0-9]+", value):
            raise UsageError(
                f"--weight {text} is not NAME=W with the name of one corpus file and a number"
            )
        weights[matching[0]] = float(value)
    return weights


def _stem(name: str) -> str:
    """The name of a corpus file without its suffixes."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".")[0]
