"""Checks of what a caller passes in, and of what JSON of others holds.

An error about an argument names it, what it may be and what it is. numpy's numbers count as
numbers; truth values and texts do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from math import inf, isfinite
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from tokalign.errors import UsageError

FilePath = str | PathLike[str]

_LONGEST_VALUE = 60


def require_integer(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Raises: UsageError for what is no integer from `least` to `most`."""
    upper = inf if most is None else most
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not least <= int(value) <= upper:
        raise UsageError(f"{name} has to be an integer {_range(least, upper)}, not {shown(value)}")


def require_number(name: str, value: Any, *, least: float, most: float = inf) -> None:
    """Raises: UsageError for what is no finite number from `least` to `most`."""
    is_number = not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)
    if not is_number or not least <= value <= most:
        raise UsageError(f"{name} has to be a number {_range(least, most)}, not {shown(value)}")


def require_text(name: str, value: object) -> None:
    """Raises: UsageError for what is no text, or one that UTF-8 cannot hold."""
    if not is_text(value):
        raise UsageError(f"{name} has to be a text without lone surrogates, not {shown(value)}")


def require_texts(name: str, value: object) -> None:
    """Raises: UsageError for what is no sequence of texts; a single text is none."""
    fits = isinstance(value, Iterable) and not isinstance(value, str)
    if not fits or not all(map(is_text, value)):  # type: ignore[call-overload]
        raise UsageError(
            f"{name} has to be a sequence of texts without lone surrogates, not {shown(value)}"
        )


def require_callable(name: str, value: object) -> None:
    """Raises: UsageError for what cannot be called."""
    if not callable(value):
        raise UsageError(f"{name} has to be a function, not {shown(value)}")


def require_callables(name: str, value: object) -> None:
    """Raises: UsageError for what is no sequence of things that can be called."""
    if not isinstance(value, Iterable):
        raise UsageError(f"{name} has to be a sequence of functions, not {shown(value)}")
    for place, item in enumerate(value):
        require_callable(f"{name}[{place}]", item)


def shown(value: object) -> str:
    """A value as an error message shows it: short, and on one line."""
    text = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def shown_path(path: object) -> str:
    """A path as an error message or a note shows it: on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def is_text(value: object) -> bool:
    """Whether it is a text that UTF-8 can hold; a lone surrogate is half a character."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def as_path(name: str | PathLike[str]) -> Path:
    """A path as typed, with `~` and `~USER` expanded; of a user that is not there it stays.

    Raises: UsageError for an empty one, which would stand for the current folder.
    """
    if not os.fspath(name):
        raise UsageError("a name or path is empty; give one, or . for the current folder")
    return Path(os.path.expanduser(name))  # `Path.expanduser` raises RuntimeError


def _range(least: float, most: float) -> str:
    return f"of at least {least}" if most == inf else f"from {least} to {most}"


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` makes of a text, or of bytes in UTF-8, UTF-16 or UTF-32.

    Raises: ValueError for what is no JSON, and for JSON that is nested too deeply, which
        `json.loads` answers with a RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
