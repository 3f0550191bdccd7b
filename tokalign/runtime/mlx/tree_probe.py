"""Whether a model takes trees, found out by having it take one without computing it.

A model takes trees if it reads its position only through rotary embeddings, which `TreeModel`
replaces, and the rows that a row sees only through the mask of its cache. What else a model may do
with positions (learned ones, ALiBi, scales that depend on them) can be of any form. So a pass is
traced over a cache whose `offset` is no number: whoever calculates with it fails. mlx is lazy, so
nothing is computed, and the price is the host time of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import CacheList, make_prompt_cache

from tokalign.runtime.mlx.layers import Layers, becomes_window, leaves_of
from tokalign.runtime.mlx.tree_attention import BRANCHING, RowPositions, with_row_positions
from tokalign.runtime.proposal import Array

_ROWS = 3

_BY_COLUMN = ("minimax_m3_vl", "phi3small")
"""Model types with block-sparse attention: which keys a row sees depends on their column."""

_known: dict[int, tuple[Any, bool]] = {}


def can_branch(model: Any, cache: Sequence[Any]) -> bool:
    """Whether passes over trees are possible with this model and cache."""
    if not isinstance(model, nn.Module) or getattr(model, "model_type", None) in _BY_COLUMN:
        return False
    if not _can_hold_trees(cache):
        return False
    key = id(model)  # modules are dicts, so they cannot be keys
    found = _known.get(key)
    if found is None or found[0]() is not model:
        _known[key] = found = ref(model, lambda _: _known.pop(key, None)), _takes_trees(model)
    return found[1]


def _can_hold_trees(cache: Sequence[Any]) -> bool:
    return all(type(leaf) in BRANCHING or becomes_window(leaf) for leaf in leaves_of(cache))


class _Offset:
    """A number of positions that may be handed to a rotary embedding, and nothing else."""

    def __init__(self, log: _Log) -> None:
        self._log = log

    def __mlx_array__(self) -> Array:
        """What comes of it must not reach the logits: it is not a number."""
        self._log.arrays += 1
        return mx.array(float("nan"))


class _Log:
    """What happened in a traced pass."""

    def __init__(self) -> None:
        self.masks = self.arrays = 0


class _Traced:
    """A cache whose offset is an `_Offset`, and that counts the masks it is asked for."""

    def __init__(self, leaf: Any, log: _Log) -> None:
        vars(self).update(_leaf=leaf, _log=log, offset=_Offset(log))

    def make_mask(self, rows: int, *_: Any, **__: Any) -> Array:
        self._log.masks += 1
        return mx.tri(rows, dtype=mx.bool_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaf, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._leaf, name, value)


def _takes_trees(model: Any) -> bool:
    log = _Log()
    positions = RowPositions()
    positions.now = mx.arange(_ROWS)
    try:
        layers = make_prompt_cache(model)
        Layers(layers, rewinds=True).open()
        if not _can_hold_trees(layers):
            return False
        traced = [_traced(layer, log) for layer in layers]
        logits = with_row_positions(model, positions)(mx.zeros((1, _ROWS), mx.uint32), cache=traced)
        return log.masks > 0 and not (log.arrays and bool(mx.isnan(logits).any()))
    except Exception:  # whatever a model raises when it calculates with what is no number
        return False


def _traced(layer: Any, log: _Log) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*[_traced(inner, log) for inner in layer.caches])
    return _Traced(layer, log)
