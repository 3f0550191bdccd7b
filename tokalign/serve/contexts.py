"""Caches and outputs that later requests go on with, apart for every API key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import (
    KVCache,
    LRUPromptCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)

from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.session_store import OutputStore

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""

Whose = Literal["target", "draft"]
"""Which model's cache, in whose ids."""

_MOST_STORES, _MOST_IDS = 16, 1 << 15
"""Output stores kept, and ids in each: about 17 MB, and 6.3 MB for what the target found likely.

The least recently used store goes first.
"""


class Held(NamedTuple):
    """A KV cache and exactly the ids that it holds; no layers if it holds none."""

    layers: list[Any] | None
    ids: list[int]


NOTHING = Held(None, [])


class Contexts:
    """Caches of both models by the ids that they hold, in one of mlx-lm's prompt caches.

    Both models' caches count towards its bounds.
    """

    def __init__(self, *, size: int, most_bytes: int | None) -> None:
        self._size, self._most_bytes = size, most_bytes
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        # An answer leaves two caches where mlx-lm's leaves one.
        bytes_too = [] if self._most_bytes is None else [self._most_bytes]
        self._caches = LRUPromptCache(2 * self._size, *bytes_too)
        self._outputs: dict[tuple[Key, str], OutputStore] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return int(self._caches.nbytes)

    def fetch(self, whose: Whose, models: Key, api_key: str, ids: Sequence[int]) -> Held:
        """A copy of the cache that shares the most with `ids`, trimmed to what they share.

        At least one id is left for the target to read.
        """
        ids = list(ids)
        layers, rest = self._caches.fetch_nearest_cache((whose, models, api_key), ids)
        if layers is not None and not rest and whose == "target":
            if not can_trim_prompt_cache(layers):
                return NOTHING
            trim_prompt_cache(layers, 1)
            rest = ids[-1:]
        return NOTHING if layers is None else Held(layers, ids[: len(ids) - len(rest)])

    def keep(
        self, whose: Whose, models: Key, api_key: str, held: Held, *, kind: str = "assistant"
    ) -> None:
        """Keep a cache. kind: what its end is, by which mlx-lm chooses what it drops first."""
        if held.layers and held.ids:
            _compact(held.layers)
            key = whose, models, api_key
            self._caches.insert_cache(key, list(held.ids), list(held.layers), cache_type=kind)

    def leave_room(self, active_bytes: int) -> None:
        """Drop what exceeds the bound together with the caches that are in use."""
        if self._most_bytes is not None:
            self._caches.trim_to(n_bytes=self._most_bytes - active_bytes)

    def outputs(self, models: Key, api_key: str) -> OutputStore:
        """The answers to an API key so far."""
        key = models, api_key
        store = self._outputs.pop(key, None) or OutputStore(most_ids=_MOST_IDS)
        self._outputs[key] = store  # the most recently used comes last
        while len(self._outputs) > _MOST_STORES:
            del self._outputs[next(iter(self._outputs))]
        return store


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
