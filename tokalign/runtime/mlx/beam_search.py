"""A beam search with a recurrent drafter, all of it on the device.

Every step is one pass of the drafter over its beams, and which beams go on is decided on the
device, too. So the host queues the whole search without waiting and reads its result once.
Source: ReDrafter (Cheng et al., 2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx

from tokalign.runtime.draft.beams import BeamShape
from tokalign.runtime.mlx.likeliest import likeliest
from tokalign.runtime.mlx.recurrent_drafter import DrafterState
from tokalign.runtime.proposal import Array

Step: TypeAlias = Callable[[DrafterState, Array], tuple[DrafterState, Array]]
"""A drafter's step: (state, ids i[beams]) -> (state after them, logits f[beams, vocabulary])."""

Expect: TypeAlias = Callable[[Array, int], Array]
"""Turns logits f[beams, vocabulary] of a step (0, 1, ...) into the log-probabilities that the
target chooses each id."""


def search(
    step: Step, state: DrafterState, last: Array, shape: BeamShape, *, count: int, expect: Expect
) -> tuple[Array, Array, Array]:
    """The arrays of a `Beams`: i[length, width, count], f[length, width, count], i[length, width].

    state: before the ids `last` i[1] are read. count: ids listed after every beam, at least the
    width, so that the best continuations are among them; the vocabulary has as many.
    Lazy: nothing waits for the device.
    """
    width, length = shape
    ids, values, chosen = [], [], []
    token, reached = last, mx.zeros((1, 1))
    for number in range(length):
        state, logits = step(state, token)
        found, of_found = likeliest(expect(logits, number), count)
        paths = (reached + of_found).reshape(-1)
        best = mx.argsort(-paths)[:width]
        ids.append(_padded(found, width, 0))
        values.append(_padded(of_found, width, -mx.inf))
        chosen.append(best)
        beams = best // count
        state = DrafterState(state.recurrent[beams], state.context)
        token, reached = found.reshape(-1)[best], paths[best][:, None]
    return mx.stack(ids), mx.stack(values), mx.stack(chosen)


def _padded(rows: Array, width: int, value: float) -> Array:
    """As many rows as there are beams; the first step has one."""
    missing = width - rows.shape[0]
    return mx.pad(rows, [(0, missing), (0, 0)], constant_values=value) if missing else rows
