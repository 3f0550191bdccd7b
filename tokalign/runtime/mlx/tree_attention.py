"""One pass over a tree: every row has a position of its own and sees only its ancestors.

An mlx-lm model takes rows as one sequence. Two things make a tree of them: the mask that the cache
hands to attention, and the rotary positions. Both are replaced for the duration of one pass, so no
model's source is changed. `mx.fast.rope` takes an offset per batch item and not per row, so the
rows are moved to the batch axis around it.
Source: tree attention of SpecInfer (Miao et al., 2023, section 4.2) and Medusa (Cai et al., 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import rope_utils
from mlx_lm.models.cache import KVCache, QuantizedKVCache
from numpy.typing import NDArray

from tokalign.runtime.proposal import Array
from tokalign.tables.token_tree import TokenTree

_ROPES = (
    nn.RoPE,
    *(
        kind
        for kind in vars(rope_utils).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module)
    ),
)

Place = tuple[Any, str]
"""A module, and the name of its attribute that is a rotary embedding."""


class RowRope(nn.Module):  # type: ignore[misc]
    """A rotary embedding whose rows have the positions i[rows], whatever the offset says."""

    def __init__(self, inner: Any, positions: Array) -> None:
        super().__init__()
        self.inner, self.positions = inner, positions

    def __call__(self, rows: Array, offset: int = 0) -> Array:
        """rows: f[1, heads, rows, head dimension]."""
        turned = self.inner(rows.swapaxes(0, 2), offset=self.positions)
        return turned.swapaxes(0, 2)


def find_ropes(model: Any) -> list[Place]:
    """Where a model keeps its rotary embeddings; empty if they are not of a known kind.

    One per layer is expected. A model with fewer encodes positions in some way that is not known
    here.
    """
    if not isinstance(model, nn.Module):
        return []
    places = [
        (module, name)
        for _, module in model.named_modules()
        for name, child in module.items()
        if isinstance(child, _ROPES)
    ]
    return places if len(places) == len(model.layers) else []


def can_branch(places: Sequence[Place], cache: Sequence[Any]) -> bool:
    """Whether a pass over a tree is possible with this model and cache."""
    return bool(places) and all(type(c) in (KVCache, QuantizedKVCache) for c in cache)


@contextmanager
def tree_rows(
    places: Sequence[Place], cache: Sequence[Any], rows: int, tree: TokenTree
) -> Iterator[None]:
    """Make a pass over `rows` ids, of which the last are the tree's, a pass over the tree."""
    offset = int(cache[0].offset)
    positions, mask = lay_out(offset, rows, tree)
    at, allowed = mx.array(positions), mx.array(mask)
    ropes = [module[name] for module, name in places]
    try:
        for (module, name), rope in zip(places, ropes, strict=True):
            module[name] = RowRope(rope, at)
        for layer in cache:
            layer.make_mask = lambda *_, **__: allowed
        yield
    finally:
        for (module, name), rope in zip(places, ropes, strict=True):
            module[name] = rope
        for layer in cache:
            vars(layer).pop("make_mask", None)


def lay_out(offset: int, rows: int, tree: TokenTree) -> tuple[list[int], NDArray[np.bool_]]:
    """Positions [rows] and mask bool[rows, offset + rows] of a pass after `offset` cached rows.

    Example: after 7 rows come the last committed id and the tree a-b, c. The positions are 7, 8, 9
    and 8, and c sees neither a nor b.
    """
    first = rows - len(tree)
    positions = list(range(offset, offset + rows))
    mask = np.tri(rows, offset + rows, offset, dtype=bool)
    for index in range(tree.chain_length, len(tree)):
        path = tree.path_to(index)
        positions[first + index] = offset + first + len(path) - 1
        mask[first + index, offset + first :] = False
        mask[first + index, [offset + first + i for i in path]] = True
    return positions, mask
