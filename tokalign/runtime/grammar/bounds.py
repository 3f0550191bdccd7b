"""Bounds on grammars, kept before llguidance sees them."""

from __future__ import annotations

from tokalign.errors import UsageError

_MOST_RULES = 4_000


def at_most(whose: str, what: str, count: int, most: int = _MOST_RULES) -> None:
    """Raises: UsageError if there are more than `most`."""
    if count > most:
        raise UsageError(f"{whose} has {count:,} {what}; the maximum is {most:,}")
