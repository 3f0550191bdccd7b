"""Randomness that is keyed by seed, stream, position and id, and depends on nothing else.

In particular it depends neither on how many rows a pass has nor on how wide a model pads its
logits: two models whose logits have different widths see the same noise at the ids they share.
"""

from __future__ import annotations

from functools import partial

import mlx.core as mx

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


def _keys(seed: int, stream: int, position: int, rows: int) -> Array:
    seed &= 0xFFFFFFFF
    keys = mx.array([[seed, position + row] for row in range(rows)], dtype=mx.uint32)
    return mx.vmap(partial(mx.random.split, num=_STREAMS))(keys)[:, stream]


def _block(key: Array) -> Array:
    return mx.random.uniform(shape=(_BLOCK,), key=key)
