"""Which ids a cache holds, noted on the cache itself.

The note goes wherever the cache goes: mlx-lm copies its caches, and trims and extends the copies.
So a note is only believed as far as the cache agrees with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

from mlx_lm.models.cache import ArraysCache

from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.proposal import Array

_NOTE = "tokalign_ids"


class _Note(NamedTuple):
    """The ids that a cache held, and the recurrent states after them where nothing else tells."""

    ids: tuple[int, ...]
    states: list[Array]


def remember(layers: Sequence[Any], ids: Sequence[int]) -> None:
    """Note on a cache which ids it holds, so that it can be continued by its content."""
    if layers:
        states = _states(layers) if positions(layers) is None else []
        setattr(layers[0], _NOTE, _Note(tuple(ids), states))


def remembered(layers: Sequence[Any]) -> list[Any] | None:
    """The ids that a cache holds, if they were noted; what was trimmed since then is left out.

    None if the cache has read on since. Where only recurrent states could tell, they have to be the
    same arrays: those of a copy are, as its note is copied with them.
    """
    note: _Note | None = getattr(layers[0], _NOTE, None) if layers else None
    if note is None:
        return None
    held = positions(layers)
    if held is None:
        now = _states(layers)
        same = len(now) == len(note.states) and all(map(is_, now, note.states))
        return list(note.ids) if same else None
    return list(note.ids[:held]) if held <= len(note.ids) else None


def positions(layers: Sequence[Any]) -> int | None:
    """How many positions a cache holds; None if it has recurrent states alone."""
    return next((int(c.offset) for c in leaves_of(layers) if hasattr(c, "offset")), None)


def unknown_positions(layers: Sequence[Any]) -> int:
    """How many positions a cache holds if nothing tells their ids; else 0.

    Recurrent states alone have no number of positions: 1 stands for any.
    """
    held = positions(layers)
    if held is None:
        held = int(not all(c.empty() for c in leaves_of(layers)))
    return held if remembered(layers) is None else 0


def _states(layers: Sequence[Any]) -> list[Array]:
    leaves = [c for c in leaves_of(layers) if isinstance(c, ArraysCache)]
    return [state for leaf in leaves for state in leaf.cache]
