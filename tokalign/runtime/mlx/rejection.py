"""Speculative sampling: ids are drawn from one distribution, and what is emitted has another.

Theorem (Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", appendix A.1; also Chen et al. 2023): let x be drawn from q, accepted with probability
min(1, p(x) / q(x)), and otherwise replaced by a draw from the normalized (p - q)+. The result has
the distribution p, whatever q is. It is x with probability sum of min(p, q).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tokalign.runtime.proposal import Array
from tokalign.tokenizer.vocabulary import TargetId


def judge(
    p: Array,
    proposed: Sequence[TargetId],
    distributions: Sequence[Array | None],
    *,
    uniform: Array,
    noise: Array,
) -> Array:
    """For each proposed id: the id itself if it is accepted, else its replacement; i[n], lazy.

    p: f[n, vocabulary], the target's distribution at each position. distributions: for each id the
    draft distribution f[1, any] it was drawn from, independently of `uniform` f[n, 1] and of the
    Gumbel `noise` f[n, vocabulary].
    An id without a distribution (None, or missing at the end) counts as a point mass: it is
    accepted with probability p(id), else replaced by a draw from the rest of p. That is the same
    as a draw from p that is then compared with the id.
    A replacement is never the id itself: an id is only rejected where q is larger than p.
    """
    ids = mx.array(list(proposed), dtype=mx.uint32)[:, None]
    q = _stack(distributions, *p.shape)
    ratio = uniform * mx.take_along_axis(q, ids, axis=-1) < mx.take_along_axis(p, ids, axis=-1)
    accepted = ratio & mx.any(q > 0, axis=-1, keepdims=True)
    rest = mx.maximum(p - q, 0)
    # Where p equals q but for rounding, nothing is left to draw from.
    rest = mx.where(mx.any(rest > 0, axis=-1, keepdims=True), rest, p)
    instead = mx.argmax(mx.log(rest) + noise, axis=-1)
    return mx.where(accepted[:, 0], ids[:, 0], instead)


def _stack(distributions: Sequence[Array | None], rows: int, width: int) -> Array:
    """f[rows, width]: 0 where no distribution is given, and beyond a narrower vocabulary."""
    stacked = mx.zeros((rows, width))
    for row, q in enumerate(distributions[:rows]):
        if q is not None:
            size = min(width, q.shape[-1])
            stacked[row, :size] = q[0, :size]
    return stacked
