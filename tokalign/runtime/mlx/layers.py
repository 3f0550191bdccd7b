"""The layers of a model's cache, from which positions can be taken back whatever their kind.

* Plain keys and values are trimmed.
* A ring that forgets (RotatingKVCache) is replaced by a `WindowCache` while a session uses it.
* A recurrent state (ArraysCache) cannot be trimmed. It is marked before each round, by reference,
  and goes back to the mark; what was accepted since then is read again with the next rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    RotatingKVCache,
)

from tokalign.runtime.limits import UNBOUNDED
from tokalign.runtime.mlx.window_cache import WindowCache

Mark = tuple[int, list[list[Any]]]
"""A number of positions, and the recurrent states after them."""


class Layers:
    """The layers of one cache. The list is changed in place.

    rewinds: whether positions will be taken back; without it mlx-lm's own rings stay.
    """

    def __init__(self, layers: list[Any], *, rewinds: bool) -> None:
        self.all = layers
        self._rewinds = rewinds
        self._mark: Mark | None = None
        self._windows: list[WindowCache] = []
        self._is_open = False

    @property
    def unknown_kinds(self) -> list[str]:
        """The kinds of layers from which positions cannot be taken back."""
        leaves = [c for c in leaves_of(self.all) if not isinstance(c, ArraysCache)]
        left = [c for c in leaves if not _is_ring(c)]
        return sorted({type(c).__name__ for c in left if not _can_take_back(c, 0)})

    @property
    def rewindable(self) -> int:
        """How many positions may be cached if some are to be taken back.

        Only a ring that keeps its first positions (`max_kv_size`) has a bound: when it is full.
        """
        rings = [c for c in leaves_of(self.all) if _is_ring(c) and c.keep]
        return min([UNBOUNDED, *[int(ring.max_size) - 1 for ring in rings]])

    @property
    def marked(self) -> int | None:
        """The position to which recurrent states go back after a rejection; None without any."""
        return None if self._mark is None else self._mark[0]

    def open(self) -> None:
        """Make the layers ready for a round."""
        if self._rewinds and not self._is_open:
            self._replace(_opened)
            self._windows = [c for c in leaves_of(self.all) if isinstance(c, WindowCache)]
            self._is_open = True
        for window in self._windows:
            window.verifies = False

    def show_a_prompt_more(self, count: int) -> bool:
        """Whether a row after `count` positions may see more of them in a prompt than alone."""
        return any(window.widest != window.max_size <= count for window in self._windows)

    @property
    def can_hand_over(self) -> bool:
        """Whether mlx-lm's own functions could go on; if not, the context has to be read again."""
        return all(window.fills_ring for window in self._windows)

    def hand_over(self) -> None:
        """Leave the layers as mlx-lm's own functions know them."""
        self._replace(_closed)
        self._is_open, self._mark, self._windows = False, None, []

    def renew(self, layers: Sequence[Any]) -> None:
        """Go on with other layers."""
        self.all[:] = layers
        self._is_open, self._mark, self._windows = False, None, []
        self.open()

    def mark(self, positions: int) -> None:
        """A round begins after so many positions."""
        states = [list(c.cache) for c in leaves_of(self.all) if isinstance(c, ArraysCache)]
        if states and self._rewinds:
            self._mark = positions, states
        for window in self._windows:
            window.verifies = True

    def take_back(self, count: int, *, held: int) -> int | None:
        """Take back the last `count` of `held` positions, or more where a mark lies further back.

        Returns: how many positions are left; None, with nothing changed, if it is not possible.
        """
        leaves = list(leaves_of(self.all))
        recurrent = [c for c in leaves if isinstance(c, ArraysCache)]
        left = held - count
        if recurrent:
            if self._mark is None or self._mark[0] > left:
                return None
            left = self._mark[0]
        others = [c for c in leaves if not isinstance(c, ArraysCache)]
        if not all(_can_take_back(c, held - left) for c in others):
            return None
        for layer in others:
            _take_back(layer, held - left)
        if recurrent and self._mark is not None:
            for layer, state in zip(recurrent, self._mark[1], strict=True):
                layer.cache = list(state)
        return left

    def _replace(self, change: Any) -> None:
        for index, layer in enumerate(self.all):
            if isinstance(layer, CacheList):
                layer.caches = tuple(map(change, layer.caches))
            else:
                self.all[index] = change(layer)


def leaves_of(layers: Sequence[Any]) -> Iterator[Any]:
    """The caches in a list of layers, of which some hold several."""
    for layer in layers:
        if isinstance(layer, CacheList):
            yield from leaves_of(layer.caches)
        else:
            yield layer


def _opened(layer: Any) -> Any:
    if isinstance(layer, ConcatenateKVCache):
        _take_back(layer, 0)  # what mlx-lm has trimmed is still in there
    return WindowCache.from_rotating(layer) if becomes_window(layer) else layer


def _closed(layer: Any) -> Any:
    return layer.to_rotating() if isinstance(layer, WindowCache) else layer


def becomes_window(layer: Any) -> bool:
    """Whether a session uses a `WindowCache` in the place of this cache."""
    return _is_ring(layer) and not layer.keep


def _is_ring(layer: Any) -> bool:
    return type(layer) is RotatingKVCache


def _take_back(layer: Any, count: int) -> None:
    layer.trim(count)
    if isinstance(layer, ConcatenateKVCache) and layer.keys is not None:
        # Its trim only lowers the offset, and the next rows would come after what was dropped.
        layer.keys, layer.values = (
            part[..., : layer.offset, :] for part in (layer.keys, layer.values)
        )


def _can_take_back(layer: Any, count: int) -> bool:
    if isinstance(layer, WindowCache):
        return layer.can_take_back(count)
    if isinstance(layer, ChunkedKVCache):  # a row sees its chunk from the beginning
        left = layer.offset - count
        return bool(layer.start_position <= left // layer.chunk_size * layer.chunk_size)
    return bool(layer.is_trimmable())
