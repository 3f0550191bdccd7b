"""The standard streams: what goes out is harmless on a terminal, and failures are one line.

Every command writes by way of this module (most of it through `output.py`). stdout is data: if it
takes no more, the command fails. stderr is notes: if it takes no more, the command goes on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

from tokalign.errors import StdoutError, UsageError

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without line feed and tab, DEL, C1
    r"\u2028-\u202e\u2066-\u2069"  # separators, and what changes the direction of what follows
    r"\ud800-\udfff]"  # half a surrogate pair, as in a file name that is not UTF-8
)
_CLOSED = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def visible(text: str) -> str:
    """`text` with its control characters written out, such as \\x1b; line feeds and tabs stay.

    A terminal would obey them: they move the cursor, recolour, retitle, or reverse what is shown.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`visible`, and line feeds and tabs written out too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def safe_json(text: str) -> str:
    """JSON with its control characters as JSON escapes; it means the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def for_stdout(text: str) -> str:
    """`text` as it is for a file or a pipe, and `visible` for a terminal."""
    return visible(text) if sys.stdout.isatty() else text


def write(text: str) -> None:
    """Write `text` on stdout as it is, at once. Raises: StdoutError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise unwritten(error) from error


def tell(text: str) -> None:
    """Write `text` and a line end on stderr as it is; nothing happens if stderr is full or gone."""
    with suppress(OSError):
        print(text, file=sys.stderr)


@contextmanager
def reading_stdin(remedy: str) -> Iterator[None]:
    """Turn an OSError of the body, which reads stdin, into one line with what to do instead.

    Raises: UsageError.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"stdin cannot be read ({error.strerror or error}); {remedy}") from error


def unwritten(error: OSError) -> StdoutError:
    """The error that says why stdout takes no more."""
    if isinstance(error, BrokenPipeError):
        return StdoutError("stdout was closed by its reader before everything was written")
    return StdoutError(
        f"stdout cannot be written ({error.strerror or error}); "
        "give it a file on a disk with room, or leave it open"
    )


def open_closed_streams() -> None:
    """Give a standard stream that is closed (`>&-`) a descriptor of its own.

    Otherwise the next file that is opened gets the number of stdout, and what any library prints
    goes into it. Using a closed stdin or stdout fails after this as it does elsewhere, with an
    OSError; what is written to a closed stderr is lost.
    """
    for name, flags in _CLOSED:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does


def finish(stream: TextIO) -> OSError | None:
    """Flush a standard stream. If that fails, returns why, and the stream takes no more.

    Without the second, the interpreter tries again when it exits, complains and exits with 120.
    """
    try:
        stream.flush()
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None
