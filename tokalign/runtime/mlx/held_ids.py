"""Which ids a cache holds, noted on the cache itself.

The note goes wherever the cache goes: mlx-lm copies its caches, and trims and extends the copies.
So a note holds a proof, too: what the first layer's cache held when the note was written. The note
is believed as far as the cache still holds the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.proposal import Array

_NOTE = "tokalign_ids"


class _Note(NamedTuple):
    """The ids that a cache held, and the arrays that prove it, see `_proof`."""

    ids: tuple[int, ...]
    proof: list[Array]


def remember(layers: Sequence[Any], ids: Sequence[int]) -> None:
    """Note on a cache which ids it holds, so that it can be continued by its content.

    Cost: the memory of one layer once others go on with the cache; until then it is shared.
    """
    if layers:
        setattr(layers[0], _NOTE, _Note(tuple(ids), _proof(layers)))


def remembered(layers: Sequence[Any]) -> list[int] | None:
    """The ids that a cache holds, if they were noted; what was trimmed since then is left out.

    None if others have changed the cache in any other way, even to the same length: a key of the
    first layer that sees positions tells which id was read there. Ids whose embeddings are equal
    are the same to a model, and here.
    """
    note: _Note | None = getattr(layers[0], _NOTE, None) if layers else None
    if note is None:
        return None
    held = positions(layers)
    if held is not None and held > len(note.ids):
        return None
    now = _proof(layers)
    if len(now) != len(note.proof) or not all(map(_agree, note.proof, now, [held] * len(now))):
        return None
    return list(note.ids[:held])


def positions(layers: Sequence[Any]) -> int | None:
    """How many positions a cache holds; None if it has recurrent states alone."""
    return next((int(c.offset) for c in leaves_of(layers) if hasattr(c, "offset")), None)


def least_positions(layers: Sequence[Any]) -> int:
    """How many positions a cache holds, or 1 for some where recurrent states are all it has."""
    held = positions(layers)
    return int(not all(c.empty() for c in leaves_of(layers))) if held is None else held


def _proof(layers: Sequence[Any]) -> list[Array]:
    """The arrays of the first layer that counts positions, else of all layers.

    mlx-lm writes into the arrays of a cache, and copies of them stay as they are.
    """
    leaves = list(leaves_of(layers))
    counting = [c for c in leaves if hasattr(c, "offset")][:1]
    arrays = (value for _, value in tree_flatten([c.state for c in counting or leaves]))
    return [copy(value) for value in arrays if isinstance(value, mx.array)]


def _agree(then: Array, now: Array, held: int | None) -> bool:
    """Whether two arrays f[..., positions, dimension] are equal in the first `held` positions.

    held: None compares all.
    """
    if held is not None and then.ndim == now.ndim > 1:
        rows = min(held, then.shape[-2], now.shape[-2])
        then, now = then[..., :rows, :], now[..., :rows, :]
    return bool(mx.array_equal(then, now))
