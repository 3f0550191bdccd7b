"""The most probable ids of every row, found on the device."""

from __future__ import annotations

import mlx.core as mx

from tokalign.runtime.proposal import Array

_BLOCK = 128


def likeliest(logprobs: Array, count: int) -> tuple[Array, Array]:
    """The top `count` ids i[rows, count] and their log-probabilities f[rows, count], lazy.

    They are in no order. Sorting whole vocabularies would be slow. The top `count` ids are
    in the `count` blocks of ids with the largest maxima. So the maxima are sorted, and the ids of
    those blocks. For 16 rows of 32,128 ids on a CPU that took 0.5 ms instead of 17.
    logprobs: f[rows, vocabulary]. Where fewer than `count` ids are possible, ids may repeat, with
    the log-probability -inf.
    """
    rows, width = logprobs.shape
    missing = -width % _BLOCK
    if missing:
        logprobs = mx.pad(logprobs, [(0, 0), (0, missing)], constant_values=-mx.inf)
    blocks = logprobs.reshape(rows, _BLOCK, -1)  # id = block + count of blocks * place
    stride = blocks.shape[-1]
    best = _top(blocks.max(axis=1), count)
    inside = mx.take_along_axis(blocks, best[:, None, :], axis=2).reshape(rows, -1)
    found = _top(inside, count)
    values = mx.take_along_axis(inside, found, axis=-1).astype(mx.float32)
    taken = best.shape[-1]
    ids = found // taken * stride + mx.take_along_axis(best, found % taken, axis=-1)
    return mx.minimum(ids, width - 1), values


def _top(values: Array, count: int) -> Array:
    """Indices of the `count` largest values of each row; all if there are no more."""
    if values.shape[-1] <= count:
        return mx.broadcast_to(mx.arange(values.shape[-1]), values.shape)
    return mx.argpartition(-values, count - 1, axis=-1)[:, :count]
