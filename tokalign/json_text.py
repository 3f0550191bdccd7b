"""JSON from files that others wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` makes of a text, or of bytes in UTF-8, UTF-16 or UTF-32.

    Raises: ValueError for what is no JSON, and for JSON that is nested too deeply, which
        `json.loads` answers with a RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def whole_number(value: Any, *, least: int = 0, most: int = 10**7) -> int:
    """A whole number that JSON gave. Raises: ValueError for anything else, and out of range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{_brief(value)} is no whole number from {least} to {most}")
    return value


def finite_number(value: Any) -> float:
    """A number of 0 or more that JSON gave. Raises: ValueError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e15:
        return float(value)
    raise ValueError(f"{_brief(value)} is no number from 0 on")


def parents_of(saved: Sequence[Any]) -> tuple[int, ...]:
    """The parents of a tree's ids: each is -1 or an id before it. Raises: ValueError."""
    return tuple(whole_number(p, least=-1, most=i - 1) for i, p in enumerate(saved))


def text_of(value: Any) -> str:
    """Text that JSON gave. Raises: ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{_brief(value)} is no text")
    return value


def _brief(value: Any) -> str:
    return repr(value)[:60]
