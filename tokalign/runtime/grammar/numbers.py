"""Numbers of JSON schemas as llguidance holds them: in 64-bit floats, and integers in 64 bits.

It writes a larger integer with other digits, and recurses without an end on one that becomes the
least integer of 64 bits, which ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_EXACT = 1 << 53
"""Every integer up to here is a float of its own."""

_LEAST = -(1 << 63) + 1024
"""The least float that is an integer of 64 bits, after the very least."""

_UP: Mapping[str, bool] = {
    "minimum": True,
    "exclusiveMinimum": True,
    "maximum": False,
    "exclusiveMaximum": False,
}
"""Where a bound moves so that nothing else fits it."""


def is_exact(value: Any) -> bool:
    """Whether all integers in a value of JSON are written as they are."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_small = not isinstance(value, int) or abs(value) <= _EXACT
    return is_small and all(map(is_exact, inner))


def held(name: str, value: Any) -> Any:
    """A bound of numbers as it is held: as it is, or the next one that fits less; None for one that
    cannot be."""
    if name not in _UP or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if value < _LEAST:
        return None
    if abs(value) <= _EXACT:
        return value
    try:
        near = float(value)
    except OverflowError:
        return value
    # An integer that is excluded is left by a step of one, which is none between such floats.
    if not math.isfinite(near) or (near == value and not name.startswith("exclusive")):
        return value
    fits = near > value if _UP[name] else near < value
    inwards = math.inf if _UP[name] else -math.inf
    inside = near if fits else math.nextafter(near, inwards)
    return None if not _LEAST <= inside < math.inf else int(inside)
