"""What waits at the end of a text that comes in parts: the beginning of a mark or stop string."""

from __future__ import annotations


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of one of these marks."""
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    for count in range(longest, 0, -1):
        if any(mark.startswith(text[-count:]) for mark in marks):
            return count
    return 0
