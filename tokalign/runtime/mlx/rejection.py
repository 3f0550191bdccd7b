"""Speculative sampling: accepting ids drawn from one law so that another one results.

Theorem (Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", appendix A.1; also Chen et al. 2023): let x be drawn from q, accepted with probability
min(1, p(x) / q(x)), and otherwise replaced by a draw from the normalized (p - q)+. What comes out
has the law p, whatever q is. It is x with probability sum of min(p, q).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tokalign.runtime.proposal import Array


def judge(
    p: Array,
    proposed: Sequence[int],
    distributions: Sequence[Array | None],
    *,
    uniform: Array,
    noise: Array,
) -> Array:
    """For each proposed id: the id itself if it is accepted, else the one in its place; i[n], lazy.

    p: f[n, vocabulary], the target's distribution at each position. distributions: for each id the
    draft distribution f[1, any] it was drawn from, independently of `uniform` f[n, 1] and of the
    Gumbel `noise` f[n, vocabulary]. An id without one (None, or missing at the end) is a point
    mass: accepted with its p, else replaced by a draw from the rest of p. That is the same as a
    draw from p that is then compared with the id.
    A replacement is never the id itself: where that is rejected, q is larger than p.
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
    """f[rows, width]; 0 where there is no law, and behind the vocabulary of a padded model."""
    q = mx.zeros((rows, width))
    for row, law in enumerate(distributions[:rows]):
        if law is not None:
            size = min(width, law.shape[-1])
            q[row, :size] = law[0, :size]
    return q
