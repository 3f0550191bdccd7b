"""Randomness that is keyed by seed, stream, position and id, and depends on nothing else.

In particular it depends neither on how many rows a pass has nor on how wide a model pads its
logits: two models whose logits have different widths see the same noise at the ids they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from tokalign.runtime.proposal import Array

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
    keys = _keys(seed, stream, position, rows)
    first = mx.broadcast_to(keys[:, :1], (rows, count))
    second = keys[:, 1:] + mx.arange(count, dtype=mx.uint32)
    blocks = mx.stack([first, second], axis=-1).reshape(-1, 2)
    u = mx.vmap(_block)(blocks).reshape(rows, -1)[:, :width]
    # Unlikely ids are chosen by large noise, which comes from small u here, where floats are dense.
    return -mx.log(-mx.log1p(-mx.maximum(u, 2.0**-33)))


def uniform(seed: int, stream: int, position: int, rows: int, *, number: int = 0) -> Array:
    """Uniform noise f[rows, 1] in [0, 1), where row i is for `position + i`; lazy.

    number: which one of the independent numbers at every position (of 1024).
    """
    return mx.vmap(_block)(_keys(seed, stream, position, rows))[:, number : number + 1]


class NoiseAhead:
    """The noise of the target's next choices, on the host (`hybrid.ComingNoise`).

    It depends on no token, so what later rounds need is computed while a pass runs, `_BATCH`
    positions at a time, and the host waits for it in the first round only.
    """

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._seed, self._vocabulary = seed, vocabulary
        self._first, self._rows = 0, list[Sequence[float]]()
        self._coming: Array | None = None  # of the positions after those of `rows`

    def rows(self, position: int) -> list[Sequence[float]]:
        """See `hybrid.ComingNoise`: for `_KNOWN` positions. `position` never decreases."""
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
        rows = mx.exp(gumbel(self._seed, TARGET, first, (_BATCH, self._vocabulary)))
        mx.async_eval(rows)  # type: ignore[no-untyped-call]
        return rows


_KNOWN, _BATCH = 6, 16
"""Positions of which the noise is looked at: few ids of a tree lie deeper. Those computed at once,
while more than that many are left: a round emits fewer."""


def _keys(seed: int, stream: int, position: int, rows: int) -> Array:
    seed &= 0xFFFFFFFF
    keys = mx.array([[seed, position + row] for row in range(rows)], dtype=mx.uint32)
    return mx.vmap(partial(mx.random.split, num=_STREAMS))(keys)[:, stream]


def _block(key: Array) -> Array:
    return mx.random.uniform(shape=(_BLOCK,), key=key)
