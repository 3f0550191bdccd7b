"""Caches and outputs that later requests go on with, apart for every API key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache

from tokalign.errors import UNLIMITED
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.remembered import OutputStore

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""

Owner = tuple[Key, str]
"""Kept caches and outputs serve later requests to the same models with the same API key."""

_MOST_STORES, _MOST_IDS = 16, 1 << 15
"""Output stores kept, and ids in each: about 17 MB, and 22 MB for what the target found likely."""


class Held(NamedTuple):
    """The KV caches of a text: the target's and exactly the ids that it holds, and the draft's.

    layers: None if nothing is held. draft: layers that know their ids themselves (`layers.py`),
    as a draft model may have another tokenizer; none without a draft model.
    """

    layers: list[Any] | None
    ids: list[int]
    draft: Sequence[Any] = ()


NOTHING = Held(None, [])


class Contexts:
    """Caches of both models by the target's ids, in one of mlx-lm's prompt caches.

    An entry has the target's layers and then the draft's, as in mlx-lm and in the Python API.
    outputs: gives the store of an owner's answers so far.
    """

    def __init__(self, *, size: int, most_bytes: int | None) -> None:
        self._size = size
        self._most_bytes = UNLIMITED if most_bytes is None else most_bytes
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._caches = LRUPromptCache(self._size, self._most_bytes)
        self.outputs = lru_cache(_MOST_STORES)(_new_outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return int(self._caches.nbytes)

    def fetch(self, owner: Owner, ids: Sequence[int], *, layers: int) -> Held:
        """A copy of the caches that share the most with `ids`, trimmed to what they share.

        At least one id is left for the target to read. layers: how many the target has. The draft's
        are trimmed as much, and may hold less or more than what is shared.
        """
        ids = list(ids)
        found, rest = self._caches.fetch_nearest_cache(owner, ids)
        if found is None or not (rest or can_trim_prompt_cache(found)):
            return NOTHING
        if not rest:
            trim_prompt_cache(found, 1)
            rest = ids[-1:]
        return Held(found[:layers], ids[: len(ids) - len(rest)], found[layers:])

    def keep(self, owner: Owner, held: Held, kind: str = "assistant") -> None:
        """Keep caches. kind: what their end is, by which mlx-lm chooses what it drops first."""
        if held.layers and held.ids:
            trims = bool(held.draft) and can_trim_prompt_cache(list(held.draft))
            both = [*held.layers, *(held.draft if trims else ())]
            _compact(both)
            self._caches.insert_cache(owner, list(held.ids), both, cache_type=kind)

    def leave_room(self, active_bytes: int) -> None:
        """Drop what exceeds the bound together with the caches that are in use."""
        self._caches.trim_to(n_bytes=self._most_bytes - active_bytes)


def _new_outputs(_owner: Owner) -> OutputStore:
    return OutputStore(most_ids=_MOST_IDS)


def _compact(layers: Sequence[Any]) -> None:
    """Have a cache take no more memory than what it holds.

    A cache has room for up to 255 positions more. One that was taken out of a batch is computed
    when it is read, and until then keeps the arrays of the whole batch alive.
    """
    leaves = list(leaves_of(layers))
    for layer in leaves:
        if type(layer) is KVCache and layer.keys is not None:
            layer.keys = mx.contiguous(layer.keys[..., : layer.offset, :])
            layer.values = mx.contiguous(layer.values[..., : layer.offset, :])
    mx.eval([layer.state for layer in leaves])
