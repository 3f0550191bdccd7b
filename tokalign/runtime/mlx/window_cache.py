"""The cache of a layer that sees only the last positions, kept so that it can be rewound.

mlx-lm's RotatingKVCache is a ring: once it is full, every new position overwrites the oldest one,
and what a rejected draft has overwritten is gone. Here positions lie in their order, with some more
than the window on the left, which are dropped many at a time.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache, create_causal_mask

from tokalign.runtime.rounds import Array

SLACK = 256
"""Positions kept besides the window, which may be taken back at any time."""


class WindowCache:
    """Keys and values f[1, heads, positions, dimension] of a layer with a window.

    It has what mlx-lm's models, and sessions, ask of a cache. max_size: the positions that a row
    sees, its own included. offset: the next position. start: that of the first one kept.
    verifies: whether rows have to see what they would see alone, and not more, where a model asks
    for a mask that is wider than the cache (plamo3).
    widest: the window of the widest mask that was asked for; 0 before the first pass.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.keys: Array = None
        self.values: Array = None
        self.offset = self.start = self._first = self.widest = 0
        self.verifies = False

    @classmethod
    def from_rotating(cls, ring: RotatingKVCache) -> WindowCache:
        """The same content, for a ring that keeps no first positions (`keep` is 0)."""
        cache = cls(ring.max_size)
        cache.offset = cache.start = ring.offset
        if ring.keys is not None:
            cache.keys, cache.values = map(ring._temporal_order, (ring.keys, ring.values))
            cache.start -= cache.keys.shape[2]
        return cache

    @property
    def fills_ring(self) -> bool:
        """Whether there are as many positions as mlx-lm's ring has by now.

        One may be missing after the last position of a full ring was taken back.
        """
        return self.offset - self.start >= min(self.offset, self.max_size)

    def to_rotating(self) -> RotatingKVCache:
        """The same content as mlx-lm keeps it. Only where it `fills_ring`."""
        ring = RotatingKVCache(self.max_size)
        if self.keys is not None:
            first = max(self.start, self.offset - self.max_size)
            ring.keys, ring.values = self._since(first)
            ring.offset, ring._idx = self.offset, self.offset - first
        return ring

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append the rows of a pass. Returns: what its first row sees, and all of its rows."""
        rows = keys.shape[2]
        self.widest = max(self.widest, self.max_size)
        first = max(0, self.offset - self.max_size + 1)
        if self.keys is None or self.offset + rows - self.start > self.keys.shape[2]:
            self._make_room(keys, values)
        begin = self.offset - self.start
        self.keys[..., begin : begin + rows, :] = keys
        self.values[..., begin : begin + rows, :] = values
        self.offset += rows
        self._first = first
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Array, Array]:
        """What the latest pass sees, for layers that share the keys of this one."""
        return self._since(self._first)

    def skip(self, count: int) -> None:
        """Leave out the next positions, after which no row sees any that is kept."""
        if count:
            self.keys = self.values = None
            self.offset = self.start = self.offset + count

    def before_next(self) -> tuple[Array, Array]:
        """What the next row sees besides itself."""
        return self._since(max(self.start, self.offset - self.max_size + 1))

    def make_mask(
        self, rows: int, window_size: int | None = None, return_array: bool = False
    ) -> Any:
        """As RotatingKVCache's, for positions in their order."""
        before = min(self.max_size - 1, self.offset)
        window = window_size or self.max_size
        self.widest = max(self.widest, window)
        if self.verifies:
            window = min(window, self.max_size)
        if rows > 1:
            if before + rows > window or return_array:
                return create_causal_mask(rows, before, window_size=window)
            return "causal"
        return mx.arange(before + 1) > before - window if before >= window else None

    def can_take_back(self, count: int) -> bool:
        """Whether the last `count` positions can be dropped, and those before are all there."""
        return self.start <= max(0, self.offset - count - self.max_size + 1)

    def trim(self, count: int) -> int:
        """Drop the last positions. Returns: how many."""
        count = min(self.offset, count)
        self.offset -= count
        return count

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> Any:
        """Raises: NotImplementedError; mlx-lm asks every cache of a model for it."""
        raise NotImplementedError("it has a window")

    @property
    def state(self) -> list[Array]:
        """What has to be evaluated."""
        return [] if self.keys is None else [self.keys, self.values]

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self.state)

    def _since(self, first: int) -> tuple[Array, Array]:
        """Keys and values from a position on."""
        at = slice(first - self.start, self.offset - self.start)
        return self.keys[..., at, :], self.values[..., at, :]

    def _make_room(self, keys: Array, values: Array) -> None:
        """Drop what no row will see, and make room for these rows and SLACK more."""
        first = max(self.start, self.offset - self.max_size + 1 - SLACK)
        room = []
        for new in (keys, values):
            batch, heads, rows, size = new.shape
            room.append(mx.zeros((batch, heads, rows + SLACK, size), new.dtype))
        if self.keys is not None:
            both = zip(self._since(first), room, strict=True)
            room = [mx.concatenate([kept, new], axis=2) for kept, new in both]
        self.keys, self.values = room
        self.start = first if self.offset else self.start
