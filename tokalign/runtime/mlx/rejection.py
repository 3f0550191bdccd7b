"""Speculative sampling: ids are drawn from one distribution, and what is emitted has another.

One candidate (Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", appendix A.1; also Chen et al. 2023): let x be drawn from q, accepted with probability
min(1, p(x) / q(x)), and otherwise replaced by a draw from the normalized (p - q)+. The result has
the distribution p, whatever q is. It is x with probability sum of min(p, q).

Several candidates (Miao et al. 2023, "SpecInfer", algorithm 2; without replacement: Yang et al.
2024, "Multi-Candidate Speculative Decoding", and Jeon et al. 2024, "Recursive Speculative
Decoding"): instead of that draw the next candidate is judged in the same way, with the normalized
(p - q)+ in the place of p and with q without x in the place of q. `docs/lossless.md` has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tokalign.runtime.proposal import Array, Draws


def judge(p: Array, drawn: Draws, *, uniform: Array, noise: Array) -> Array:
    """For each row the first candidate that is accepted, else a replacement of all; i[rows], lazy.

    p: f[rows, vocabulary], the target's distribution of what follows each row. drawn: candidates
    and distributions of the rows, drawn independently of `uniform` f[rows, at least as many as the
    most candidates] and of the Gumbel `noise` f[rows, vocabulary].
    An id without a distribution is no candidate, but counts as a point mass: it is accepted if the
    replacement is that id, which is how a draw from p is compared with a guess.
    A replacement is never a candidate that was judged: such an id is only rejected where q is
    larger than p.
    """
    rows, width = p.shape
    most = max(map(len, drawn.candidates), default=0)
    q = _stack(drawn.distributions, rows, width)
    filled = [[*ids, *[-1] * (most - len(ids))] for ids in drawn.candidates]
    candidates = mx.array(filled, dtype=mx.int32) if most else mx.zeros((rows, 0), mx.int32)
    accepted = mx.full((rows, 1), -1, dtype=mx.int32)
    for place in range(most):
        judged = candidates[:, place : place + 1]
        is_open = (accepted < 0) & (judged >= 0)
        at = mx.maximum(judged, 0)
        ratio = uniform[:, place : place + 1] * mx.take_along_axis(q, at, axis=-1)
        agrees = is_open & (ratio < mx.take_along_axis(p, at, axis=-1))
        accepted = mx.where(agrees, judged, accepted)
        p = mx.where(is_open, _normalized(mx.maximum(p - q, 0), instead=p), p)
        q = _normalized(mx.put_along_axis(q, at, mx.array(0.0), axis=-1), instead=q)
    replacement = mx.argmax(mx.log(p) + noise, axis=-1)
    return mx.where(accepted[:, 0] < 0, replacement, accepted[:, 0])


def _normalized(weights: Array, *, instead: Array) -> Array:
    """Weights f[rows, any] that add up to 1; `instead` where rounding has left none."""
    total = weights.sum(axis=-1, keepdims=True)
    return mx.where(total > 0, weights / mx.maximum(total, 1e-30), instead)


def _stack(distributions: Sequence[Array | None], rows: int, width: int) -> Array:
    """f[rows, width]: 0 where no distribution is given, and beyond a narrower vocabulary."""
    stacked = mx.zeros((rows, width))
    for row, q in enumerate(distributions[:rows]):
        if q is not None:
            size = min(width, q.shape[-1])
            stacked[row, :size] = q[0, :size]
    return stacked
