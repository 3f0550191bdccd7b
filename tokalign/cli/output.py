"""What every subcommand shares: data to stdout, progress to stderr, colours only where wanted."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tokalign.errors import UsageError

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")


def print_json(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout, keys in the order given."""
    click.echo(as_json(result))


def as_json(value: Any, *, indent: str = "") -> str:
    """JSON with a line per key, and per element of a list of objects; the rest of it in a row.

    An object inside stays on one line where that has at most 240 columns.
    """
    flat = json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, Mapping) and value and (not indent or len(indent + flat) > 240):
        names = (json.dumps(str(key), ensure_ascii=False) for key in value)
        values = (as_json(item, indent=inner) for item in value.values())
        lines = [f"{name}: {item}" for name, item in zip(names, values, strict=True)]
        return _block("{", lines, "}", indent)
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return _block("[", [as_json(item, indent=inner) for item in value], "]", indent)
    return flat


def _block(opening: str, lines: Iterable[str], closing: str, indent: str) -> str:
    return f"{opening}\n{indent}  " + f",\n{indent}  ".join(lines) + f"\n{indent}{closing}"


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none. Raises: UsageError where that is not possible."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); give a file in a folder that exists"
        ) from error


def note(message: str, *, quiet: bool = False) -> None:
    """A line on stderr: what an alias resolved to, what was left out, why a fallback was taken."""
    if not quiet:
        print(message, file=sys.stderr)


def colours_wanted() -> bool:
    """Colours on a terminal, unless NO_COLOR is set (no-color.org); FORCE_COLOR overrides."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


@contextmanager
def progress(
    total: int, label: str, *, quiet: bool = False, in_bytes: bool = False
) -> Iterator[Any]:
    """A progress bar on stderr for work that may take over two seconds, with the time left.

    in_bytes: what `total` counts is bytes; then the rate is shown too.
    Yields a callable that takes the amount done since the last call. Nothing is drawn before two
    seconds have passed, nor when stderr is not a terminal, nor when `quiet`.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TransferSpeedColumn

    started, done = time.monotonic(), 0
    columns = (*Progress.get_default_columns(), *([TransferSpeedColumn()] if in_bytes else []))
    bar = Progress(*columns, transient=True, console=Console(stderr=True))
    task = bar.add_task(label, total=total)

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        if not bar.live.is_started and time.monotonic() - started > 2:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Two aligned columns."""
    pairs = [(name, str(value)) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def print_figures(figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print named figures on stdout, as a JSON object or as a table with four decimal places."""
    if as_json:
        print_json(figures)
        return
    rows = ((k, f"{v:.4f}" if isinstance(v, float) else v) for k, v in figures.items())
    click.echo(table(rows))
