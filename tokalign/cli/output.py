"""What every subcommand shares: data on stdout, progress on stderr.

How text gets out, and what happens if it does not: `streams.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tokalign.cli.streams import for_stdout, one_line, safe_json, tell, write


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout, keys in the order given."""
    echo(to_json(result))


def echo(text: str, *, nl: bool = True) -> None:
    """Print `text` on stdout, for a terminal with its control characters written out.

    Raises: OutputError.
    """
    write(for_stdout(text) + "\n" * nl)


def to_json(value: Any) -> str:
    """Write JSON with one line per key, and one per element of a list of objects.

    A nested object stays on one line if that has at most 240 columns. Control characters in strings
    are escaped, DEL, C1 and those that change the direction too.
    """
    return safe_json(_laid_out(value, indent=""))


def _laid_out(value: Any, *, indent: str) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, Mapping) and value and (not indent or len(indent + flat) > 240):
        names = (json.dumps(str(key), ensure_ascii=False) for key in value)
        values = (_laid_out(item, indent=inner) for item in value.values())
        lines = [f"{name}: {item}" for name, item in zip(names, values, strict=True)]
        return _block("{", lines, "}", indent)
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return _block("[", [_laid_out(item, indent=inner) for item in value], "]", indent)
    return flat


def _block(opening: str, lines: Iterable[str], closing: str, indent: str) -> str:
    return f"{opening}\n{indent}  " + f",\n{indent}  ".join(lines) + f"\n{indent}{closing}"


def note(message: str, *, quiet: bool = False) -> None:
    """Print a line on stderr: what an alias stands for, what was left out, a fallback.

    Control characters in it are written out, line feeds too: it stays one line.
    """
    if not quiet:
        tell(one_line(message))


@contextmanager
def progress(
    total: int, label: str, *, quiet: bool = False, in_bytes: bool = False, unit: str = ""
) -> Iterator[Any]:
    """Show a progress bar with the time left, for work that may take over two seconds.

    in_bytes: `total` counts bytes, and the rate is shown too. unit: what else it counts, such as
    "steps", if the rate is to be shown.
    Yields a callable that takes the amount done since the last call. Nothing is drawn in the first
    two seconds, if stderr is not a terminal, or if `quiet`.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TransferSpeedColumn

    started, done, before = time.monotonic(), 0, 0
    rates = [TransferSpeedColumn()] if in_bytes else [TextColumn("{task.fields[rate]}")]
    columns = (*Progress.get_default_columns(), *(rates if in_bytes or unit else []))
    bar = Progress(*columns, transient=True, console=Console(stderr=True))
    task = bar.add_task(label, total=total, rate="")

    def advance(amount: int) -> None:
        nonlocal done, before
        done += amount
        seconds = time.monotonic() - started
        if seconds < 0.1:  # what an earlier run has done is there at once
            before = done
        if not bar.live.is_started and time.monotonic() - started > 2:
            bar.start()
        bar.update(
            task, completed=done, rate=f"{(done - before) / max(seconds, 0.1):,.1f} {unit}/s"
        )

    try:
        yield advance
    finally:
        bar.stop()


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Format two aligned columns. A row is one line, whatever its values contain."""
    pairs = [(one_line(name), one_line(str(value))) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def print_figures(figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print named figures on stdout, as a JSON object or as a table with four decimal places."""
    if as_json:
        print_json(figures)
        return
    echo(table((name, _figure(value)) for name, value in figures.items()))


def _figure(value: object) -> object:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.4f}"
        case Mapping():
            return ", ".join(f"{name} {one}" for name, one in value.items())
    return value
