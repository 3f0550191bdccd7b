"""Randomness that is keyed by seed, stream, position and id, and depends on nothing else: neither
on the rows of a pass, nor on how wide a model pads its logits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import local

import mlx.core as mx
import numpy as np

from tokalign.runtime.rounds import Array

TARGET, VERDICT = 0, 2
"""Independent streams at every position: what the target chooses by, and what XTC decides by."""

_STREAMS = 3
"""Another number would change the text of every seed."""

_BLOCK = 1024
"""How many ids share a key."""


def gumbel(seed: int, stream: int, position: int, shape: tuple[int, int]) -> Array:
    """Gumbel noise f[rows, ids], where row i is for `position + i`; lazy.

    The id with the largest score + noise is a sample of softmax(scores). Only the low 32 bits of
    `seed` are used. Cost: 0.7 ms per row of 32,000 ids on a CPU.
    """
    rows, width = shape
    count = -(-width // _BLOCK)
    keys = _keys(seed, stream, range(position, position + rows))
    first = mx.broadcast_to(keys[:, :1], (rows, count))
    second = keys[:, 1:] + mx.arange(count, dtype=mx.uint32)
    blocks = mx.stack([first, second], axis=-1).reshape(-1, 2)
    u = mx.vmap(_block)(blocks).reshape(rows, -1)[:, :width]
    # Unlikely ids are chosen by large noise, which comes from small u here, where floats are dense.
    return -mx.log(-mx.log1p(-mx.maximum(u, 2.0**-33)))


def uniform(seed: int, stream: int, positions: Sequence[int] | Array) -> Array:
    """Uniform noise f[positions, 1] in [0, 1), the second number of a position's block; lazy."""
    return mx.vmap(_block)(_keys(seed, stream, positions))[:, 1:2]


class Noise(local):
    """The noise of the choices that one seed makes, computed once for each position and thread."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._blocks: dict[int, Array] = {}  # of `_POSITIONS` rows each, the oldest first

    def __reduce__(self) -> tuple[type[Noise], tuple[int]]:
        return Noise, (self._seed,)

    def rows(self, positions: Sequence[int], vocabulary: int) -> Array:
        """f[positions, vocabulary], lazy."""
        first = min(positions) // _POSITIONS
        numbers = range(first, max(positions) // _POSITIONS + 1)
        blocks = [self._block(number, vocabulary) for number in numbers]
        whole = blocks[0] if len(blocks) == 1 else mx.concatenate(blocks)
        return whole[mx.array([position - first * _POSITIONS for position in positions])]

    def _block(self, number: int, vocabulary: int) -> Array:
        block = self._blocks.get(number)
        if block is None or block.shape[1] < vocabulary:
            # Whole blocks, as a draft may know of fewer ids than the target.
            shape = _POSITIONS, -(-vocabulary // _BLOCK) * _BLOCK
            block = gumbel(self._seed, TARGET, number * _POSITIONS, shape)
            mx.async_eval(block)  # type: ignore[no-untyped-call]
            while len(self._blocks) >= _BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return block[:, :vocabulary]


_POSITIONS, _BLOCKS = 8, 6
"""Positions of a block, and blocks kept: more positions than a proposal is deep."""


class NoiseAhead:
    """The noise of the target's next choices, on the host. It depends on no token, so it is
    computed while the host drafts in an earlier round."""

    def __init__(self, noise: Noise, vocabulary: int) -> None:
        self._noise, self._vocabulary = noise, vocabulary
        self._first, self._rows = 0, list[Sequence[float]]()
        self._coming: Array | None = None  # of the positions after those of `rows`

    def rows(self, position: int) -> list[Sequence[float]]:
        """e to the noise of every id, for `_KNOWN` positions. `position` never decreases."""
        self._rows, self._first = self._rows[position - self._first :], position
        if len(self._rows) < _KNOWN:
            coming = self._coming if self._rows else None  # else far behind, or not begun
            self._rows += map(memoryview, np.array(self._begun() if coming is None else coming))
            self._coming = None
        elif self._coming is None and len(self._rows) < 2 * _KNOWN:
            self._coming = self._begun()
        return self._rows[:_KNOWN]

    def _begun(self) -> Array:
        first = self._first + len(self._rows)
        rows = mx.exp(self._noise.rows(range(first, first + _BATCH), self._vocabulary))
        mx.async_eval(rows)  # type: ignore[no-untyped-call]
        return rows


_KNOWN, _BATCH = 8, 8
"""Positions looked at, as few ids of a tree lie deeper, and computed at once."""


def _keys(seed: int, stream: int, positions: Sequence[int] | Array) -> Array:
    if not isinstance(positions, mx.array):
        positions = mx.array([*positions])
    second = positions.astype(mx.uint32)
    first = mx.full(second.shape, seed & 0xFFFFFFFF, dtype=mx.uint32)
    keys = mx.stack([first, second], axis=-1)
    return mx.vmap(partial(mx.random.split, num=_STREAMS))(keys)[:, stream]


def _block(key: Array) -> Array:
    return mx.random.uniform(shape=(_BLOCK,), key=key)
