"""Passes over trees: every row has a position of its own and sees only its ancestors.

An mlx-lm model takes rows as one sequence. Two things make a tree of them: the mask that the cache
hands to attention, which is set on the session's own cache, and the rotary positions, which are set
in a *twin* of the model (`twins.twin_of`). `mx.fast.rope` takes an offset per batch item and not
per row, so rows are moved to the batch axis.
Source: tree attention of SpecInfer (Miao et al., 2023, section 4.2) and Medusa (Cai et al., 2024).

A model takes trees if it reads positions only through rotary embeddings, and the rows that a row
sees only through the mask of its cache. To find out what else it does with positions (learned ones,
ALiBi, scales), a pass is traced over a cache whose `offset` is no number, and calculating with it
fails. mlx is lazy, so that costs the host time of a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache as cache_calls
from functools import partial
from inspect import signature
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache
from numpy.typing import NDArray

from tokalign.runtime.mlx.layers import Layers, becomes_window, leaves_of, with_leaves
from tokalign.runtime.mlx.twins import twin_of
from tokalign.runtime.mlx.weights import once_per_model
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import Array
from tokalign.tables.token_tree import TokenTree

BRANCHING = (KVCache, QuantizedKVCache, WindowCache)
"""Kinds of caches whose rows can be moved, and whose mask can be chosen."""


class RowPositions:
    """Positions i[rows] of the pass under way. All rotary embeddings of a twin read them."""

    now: Array = None


class RowRope(nn.Module):  # type: ignore[misc]
    """A rotary embedding whose rows have positions of their own, whatever the offset says."""

    def __init__(self, inner: Any, positions: RowPositions) -> None:
        super().__init__()
        self.inner, self.positions = inner, positions

    def __call__(self, rows: Array, offset: Any = 0) -> Array:
        """rows: f[1, heads, rows, head dimension]."""
        if rows.ndim != 4 or rows.shape[0] != 1:
            raise ValueError(f"rows f[1, heads, rows, dimension] were expected, not {rows.shape}")
        turned = self.inner(rows.swapaxes(0, 2), offset=self.positions.now)
        return turned.swapaxes(0, 2)


@contextmanager
def tree_masks(cache: Sequence[Any], rows: int, tree: TokenTree[Any]) -> Iterator[list[int]]:
    """Have a cache hand out the masks of a pass over `rows` ids with the tree's last.

    If `rows` are fewer than the tree's ids, the rows of its first ids end the cache.
    Gives: the rows' positions.
    """
    leaves = leaves_of(cache)
    offset = int(leaves[0].offset)
    computed = max(0, len(tree.ids) - rows)
    positions, allowed = lay_out(offset - computed, computed + rows, tree)
    seen = np.concatenate([np.arange(offset - computed), positions])
    positions, allowed = positions[computed:], allowed[computed:]

    @cache_calls
    def mask(window: int | None, columns: int) -> Array:
        if window is None:
            # DeepSeek V3.2 indexes the mask of a single row by the axes that those of batches have.
            return mx.array(allowed if rows > 1 else allowed[None, None])
        near = np.array(positions)[:, None] - seen[None] < window
        return mx.array((allowed & near)[:, -columns:])

    def make_mask(layer: Any) -> Any:
        most = getattr(layer, "max_size", None)
        columns = rows + (offset if most is None else min(offset, most - 1))

        def mask_of(*_: Any, window_size: int | None = None, **__: Any) -> Array:
            windows = [window for window in (window_size, most) if window]
            return mask(min(windows, default=None), columns)

        return mask_of

    try:
        for layer in leaves:
            layer.make_mask = make_mask(layer)
        yield positions
    finally:
        for layer in leaves:
            vars(layer).pop("make_mask", None)


def keep_rows(cache: Sequence[Any], begin: int, path: Sequence[int]) -> None:
    """Move cached rows to where a chain would have put them; their rotary positions stay right.

    begin: the position of the tree's first row. path: indices of the rows in the tree, ascending.
    All are read before one is written: mlx copies a whole array to write into it if a read of it is
    still to be computed. After 32,000 ids such a round took a third longer.
    """
    stay = next((n for n, index in enumerate(path) if n != index), len(path))
    moving = mx.array(list(path[stay:]), dtype=mx.int32)
    on_device = cache_calls(lambda position: (moving + position, mx.array([position + stay])))
    found = []
    for layer in leaves_of(cache) if moving.size else ():
        if layer.keys is not None:  # else it reads the keys of another layer
            rows, target = on_device(begin - getattr(layer, "start", 0))
            take = partial(mx.take, indices=rows, axis=2)
            found.append((layer, target, *tree_map(take, (layer.keys, layer.values))))
    mx.eval([read for _, _, *read in found])
    for layer, target, keys, values in found:
        # An update at a position on the device takes half the host time of indexing and assigning.
        write = partial(mx.slice_update, start_indices=target, axes=(2,))
        layer.keys = tree_map(write, layer.keys, keys)
        layer.values = tree_map(write, layer.values, values)


def with_row_positions(model: Any, positions: RowPositions) -> Any:
    """A twin of `model` whose rotary embeddings read `positions`."""

    def replace(module: Any) -> Any:
        return RowRope(module, positions) if _is_rope(type(module).__call__) else None

    return twin_of(model, replace)


@cache_calls
def _is_rope(call: Callable[..., Any]) -> bool:
    """Whether a module with this `__call__` is called as `nn.RoPE` is: with rows and an offset."""
    return list(signature(call).parameters)[2:3] == ["offset"]


def lay_out(offset: int, rows: int, tree: TokenTree[Any]) -> tuple[list[int], NDArray[np.bool_]]:
    """Positions [rows] and mask bool[rows, offset + rows] of a pass after `offset` cached rows.

    Example: after 7 rows come the last committed id and the tree a-b, c. The positions are 7, 8, 9
    and 8, and c sees neither a nor b.
    """
    first = rows - len(tree.ids)
    positions = list(range(offset, offset + rows))
    mask = np.tri(rows, offset + rows, offset, dtype=bool)
    for row, parent in enumerate(tree.parents, first):
        before = first + parent  # the row that it follows; -1 if that is cached
        positions[row] = positions[before] + 1 if before >= 0 else offset
        mask[row, offset:] = mask[before, offset:] if before >= 0 else False
        mask[row, offset + row] = True
    return positions, mask


_ROWS = 3

_BY_COLUMN = ("minimax_m3_vl", "phi3small")
"""Model types with block-sparse attention: which keys a row sees depends on their column."""


def can_branch(model: Any, cache: Sequence[Any]) -> bool:
    """Whether passes over trees are possible with this model and cache."""
    if not isinstance(model, nn.Module) or getattr(model, "model_type", None) in _BY_COLUMN:
        return False
    return _can_hold_trees(cache) and _takes_trees(model)


def _can_hold_trees(cache: Sequence[Any]) -> bool:
    return all(type(leaf) in BRANCHING or becomes_window(leaf) for leaf in leaves_of(cache))


class _Traced:
    """Stands for a cache in a traced pass. Its offset is no number, and the log counts the masks
    it was asked for and the arrays that were made of its offset.
    """

    def __init__(self, leaf: Any, log: Counter[str]) -> None:
        vars(self).update(_leaf=leaf, _log=log, offset=Offset(log))

    def make_mask(self, rows: int, *_: Any, **__: Any) -> Array:
        self._log["masks"] += 1
        return mx.tri(rows, dtype=mx.bool_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaf, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._leaf, name, value)


class Offset:
    """A number of positions that may be handed to a rotary embedding, and used for nothing else."""

    def __init__(self, log: Counter[str] | None = None) -> None:
        self._log = Counter[str]() if log is None else log

    def __mlx_array__(self) -> Array:
        """An array that is not a number; it must not reach the logits."""
        self._log["arrays"] += 1
        return mx.array(float("nan"))


@once_per_model
def _takes_trees(model: Any) -> bool:
    log, positions = Counter[str](), RowPositions()
    positions.now = mx.arange(_ROWS)
    layers = make_prompt_cache(model)
    Layers(layers).open()
    if not _can_hold_trees(layers):
        return False
    traced = with_leaves(layers, lambda leaf: _Traced(leaf, log))
    twin = with_row_positions(model, positions)
    try:
        logits = twin(mx.zeros((1, _ROWS), mx.uint32), cache=traced)
    except (TypeError, ValueError):  # it calculates with the offset, or has rotary rows of its own
        return False
    return log["masks"] > 0 and not (log["arrays"] and bool(mx.isnan(logits).any()))
