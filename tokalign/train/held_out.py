"""How many guesses of a drafter the target would accept, on positions that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.train.labels import Labels

_ROWS = 256


@dataclass(frozen=True, slots=True)
class Acceptance:
    """by_depth: the share of positions at which the first d guesses are all right, d = 1, 2, …"""

    by_depth: tuple[float, ...]

    @property
    def per_round(self) -> float:
        """Guesses accepted per round, if a chain of this length is verified."""
        return sum(self.by_depth)


def measure_acceptance(drafter: RecurrentDrafter, labels: Labels) -> Acceptance:
    """The acceptance of chains of most probable guesses. labels: what the target says follows."""
    counts, depth = accepted_counts(drafter, labels), labels.ids.shape[1] - 1
    return Acceptance(tuple(float((counts >= d).mean()) for d in range(1, depth + 1)))


def accepted_counts(drafter: RecurrentDrafter, labels: Labels) -> NDArray[np.intp]:
    """For each position how many leading guesses of a chain are right, i[n]."""
    counts = []
    for begin in range(0, len(labels.ids), _ROWS):
        ids = np.asarray(labels.ids[begin : begin + _ROWS])
        right = np.stack(_right(drafter, labels.hidden[begin : begin + _ROWS], ids), axis=1)
        counts.append(np.logical_and.accumulate(right, axis=1).sum(axis=1))
    return np.concatenate(counts)


def _right(
    drafter: RecurrentDrafter, hidden: NDArray[np.float16], ids: NDArray[np.int32]
) -> list[NDArray[np.bool_]]:
    """Whether the guess of each depth is right, bool[n] each, after guesses that are all right."""
    state, right = drafter.initial_state(mx.array(np.asarray(hidden))), []
    for depth in range(ids.shape[1] - 1):
        state, logits = drafter.step(state, mx.array(ids[:, depth]))
        right.append(np.array(mx.argmax(logits, axis=-1)) == ids[:, depth + 1])
    return right
