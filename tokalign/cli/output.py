"""How every command writes: data on stdout, notes and progress on stderr; safe on a terminal."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO, TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, TextIO

from tokalign.cli.failures import unwritten
from tokalign.errors import CorpusError, TokalignError, UsageError
from tokalign.storage import as_path


@dataclass(slots=True)
class Flags:
    """--json and --quiet, which every command has."""

    as_json: bool = False
    quiet: bool = False


flags = Flags()

RESET = "\x1b[0m"

MOST_TEXT = 1 << 26
"""The most characters of a prompt, a schema or a conversation: a device may never end."""

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without line feed and tab, DEL, C1
    r"\u2028-\u202e\u2066-\u2069"  # separators, and what changes the direction of what follows
    r"\ud800-\udfff]"  # half a surrogate pair, as in a file name that is not UTF-8
)


def visible(text: str) -> str:
    """`text` with the characters that drive a terminal written out; line feeds and tabs stay."""
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


def to_stderr(text: str, end: str = "\n") -> None:
    """Write `text` and its end on stderr as it is; nothing happens if stderr is full or gone."""
    with suppress(OSError):
        print(text, file=sys.stderr, end=end, flush=True)


@contextmanager
def reading_stdin(remedy: str) -> Iterator[None]:
    """Turn an OSError of the body, which reads stdin, into a UsageError with a remedy."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"stdin cannot be read ({error.strerror or error}); {remedy}") from error


def read_all(file: TextIO) -> str:
    """The text in a file, a pipe or a device, without the mark that some editors begin it with.
    Raises: OSError for one that is endless."""
    text = file.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {MOST_TEXT:,} characters")
    return text.removeprefix("\ufeff")


def read_text_file(path: Path, shown: str, remedy: str) -> str:
    """A text named on the command line. shown: its name in errors. Raises: UsageError."""
    try:
        with path.open(encoding="utf-8") as file:
            return read_all(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"{shown} cannot be read ({reason}); {remedy}") from error


def text_or_file(typed: str, what: str) -> str:
    """A text as typed, or that of the file @FILE; @@ begins a text with an @. what: the file in
    errors. Raises: UsageError."""
    if not typed.startswith("@"):
        return typed
    if typed.startswith("@@"):
        return typed[1:]
    remedy = f"give a text file, or write @{typed} for a text that begins with an @"
    return read_text_file(as_path(typed[1:]), f"{what} {typed[1:]}", remedy)


def open_closed_streams() -> None:
    """Give a standard stream that is closed (`>&-`) a descriptor of its own. Otherwise the next
    file that is opened gets the number of stdout, and all prints go into it."""
    closed = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
    for name, mode_of_access in closed.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, mode_of_access)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does


def finish(stream: TextIO) -> OSError | None:
    """Flush a standard stream. Returns: why that failed; or the interpreter would flush it again
    and exit with 120."""
    try:
        stream.flush()
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    echo(to_json(result))


def echo(text: str) -> None:
    """Print `text` and a line end on stdout, as `for_stdout` has it. Raises: StdoutError."""
    write(for_stdout(text) + "\n")


def to_json(result: Mapping[str, Any]) -> str:
    """Write a JSON object with one line per key, all control characters escaped."""
    lines = (json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in result.items())
    return safe_json("{\n  " + ",\n  ".join(lines) + "\n}")


def show(result: Mapping[str, Any], in_words: Callable[[], str] | None = None) -> None:
    """Print a command's result: with --json as an object, else `in_words` or as a table."""
    if flags.as_json:
        print_json(result)
    else:
        echo(table(rows(result)) if in_words is None else in_words())


def rows(result: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested keys as dotted names; objects in a list are numbered."""
    for key, value in result.items():
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value, 1))
        if isinstance(value, Mapping):
            yield from rows(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _shown(value)


def _shown(value: object) -> object:
    match value:
        case None:
            return "-"
        case float():
            return round(value, 4)
        case list():
            return ", ".join(map(str, value)) or "-"
        case int() if not isinstance(value, bool):
            return f"{value:,}"
    return value


def message_line(text: str) -> str:
    """`one_line`, or what of it fits the lines of a terminal."""
    line = one_line(text)
    return _filled(line, "  ") if sys.stderr.isatty() else line


def complain(error: TokalignError) -> int:
    """Say on stderr why something was not done. Returns: the exit code."""
    to_stderr(message_line(f"tokalign: {error}"))
    return error.exit_code


def note(message: str, *, lines: bool = False) -> None:
    """Print a message on stderr, as `message_line`; nothing for --quiet. lines: as it is."""
    if not flags.quiet:
        to_stderr(visible(message) if lines else message_line(message))


def note_problems(problems: Sequence[str], what: str) -> None:
    """Note the first ten, and how many more `what` there are."""
    for problem in problems[:10]:
        note(problem)
    if len(problems) > 10:
        note(f"{len(problems) - 10} more {what}")


@contextmanager
def skipping_lines() -> Iterator[Callable[[CorpusError], None]]:
    """Yields: the `Report` of a corpus that skips what cannot be read. When the body ends, however
    it does, that is named, once."""
    problems: dict[tuple[str | None, int | None], str] = {}

    def skip(problem: CorpusError) -> None:
        problems[problem.path, problem.line] = f"skipped {problem}"

    try:
        yield skip
    finally:
        note_problems([*problems.values()], "lines that cannot be read")


@contextmanager
def progress(total: int, label: str, unit: str = "") -> Iterator[Any]:
    """Show a progress bar on a terminal, after two seconds. Yields: takes what was done since.
    unit: what `total` counts, if the rate is to be shown."""
    if flags.quiet or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TransferSpeedColumn

    began = time.monotonic()
    columns = [*Progress.get_default_columns()]
    if unit:
        columns.append(
            TransferSpeedColumn() if unit == "bytes" else TextColumn("{task.fields[rate]}")
        )
    bar = Progress(*columns, transient=True, console=Console(stderr=True))
    task = bar.add_task(label, total=total, rate="")

    def advance(amount: float) -> None:
        if not bar.live.is_started and time.monotonic() - began > 2:
            bar.start()
        bar.advance(task, amount)
        bar.update(task, rate=f"{bar.tasks[0].speed or 0:,.1f} {unit}/s")

    try:
        yield advance
    finally:
        bar.stop()


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Format two aligned columns to fit the lines. A value without a space stays with its name."""
    pairs = [(one_line(name), one_line(str(value))) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    indent = " " * (width + 2 if width + 24 <= line_width() else 4)
    lines = ((f"{name:<{width}}  {value}", " " in value) for name, value in pairs)
    return "\n".join(_filled(line, indent) if breaks else line for line, breaks in lines)


def _filled(line: str, indent: str) -> str:
    return fill(
        line, line_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def paragraph(text: str) -> str:
    """A text in lines that fit."""
    return "\n".join(_filled(line, "") for line in text.splitlines())


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that fits the lines."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="")
    for name in head:
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*map(one_line, row))
    written = StringIO()
    Console(file=written, width=line_width(), markup=False, highlight=False).print(grid)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def line_width() -> int:
    """Characters of a line: $COLUMNS, else those of the terminal, else 100."""
    return get_terminal_size((100, 24)).columns


def figures_table(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A column for each name and a row for each object: to fit the lines of a terminal, or of
    $COLUMNS; else in Markdown."""
    cells = ([cell(row[name]) for name in names] for row in rows)
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return columns([name.replace("_", " ") for name in names], cells)
    return markdown_table(names, cells)


def cell(value: object) -> str:
    """A figure of a table; nothing for None."""
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, aligned: the first two columns are text, the others numbers."""
    lines = [head, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    specs = [f"{'<' if column < 2 else '>'}{width}" for column, width in enumerate(widths)]
    dashes = ["-" * width for width in widths[:2]] + ["-" * (n - 1) + ":" for n in widths[2:]]
    lines.insert(1, dashes)
    return "\n".join(f"| {' | '.join(map(format, row, specs))} |" for row in lines)
