"""Losses that compare the probabilities of a model or a drafter with the target's."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tokalign.runtime.rounds import Array
from tokalign.train.options import Loss


def losses_of(log_q: Array, p: Array, kinds: Sequence[Loss]) -> Array:
    """The mean f32[...] of some losses at each place, in nats.

    log_q: f32[..., 1 + k], log-probabilities of the label and of the target's k most probable ids.
    p: f[..., k], the target's probabilities of these; 0 leaves an id to the others.
    "marginal": cross-entropy of the label. "kl": the divergence of q from p, with all other ids as
    one. "acceptance": -log of the sum of min(p, q), the share of drawn ids that would be accepted
    (LK, arXiv 2602.23881). "text" is no loss of this kind, and is left out.
    """
    losses = []
    log_q, label = log_q[..., 1:], log_q[..., 0]
    p, q = p.astype(mx.float32), mx.exp(log_q)
    for kind in kinds:
        if kind == "marginal":
            losses.append(-label)
        elif kind == "kl":
            others = [mx.clip(1 - x.sum(axis=-1), 1e-4, 1.0) for x in (p, q)]
            ours = (p * (mx.log(mx.maximum(p, 1e-6)) - log_q)).sum(axis=-1)
            losses.append(ours + others[0] * mx.log(others[0] / others[1]))
        elif kind == "acceptance":
            accepted = mx.minimum(p, q).sum(axis=-1)
            losses.append(-mx.log(mx.maximum(accepted, 1e-6)))
    return sum(losses) / len(losses)
