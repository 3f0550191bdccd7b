"""A draft model's probabilities over target ids, for what draws as its target does.

Noise is that of target ids. So the probabilities of draft ids that begin with one target id add up,
or that id's noise is shared among them (`sampling.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.rounds import Array
from tokalign.tables.alignment import NO_TOKEN, FirstIds


class ToTargetIds:
    """A draft model's probabilities over the first target ids of its tokens, on the device.

    ids: the draft ids that the columns of rows are of. Those beyond the tokenizer's, with which a
    model is padded, stand for none.
    counts: how many target ids each draft id stands for.
    """

    def __init__(self, firsts: FirstIds, ids: NDArray[Any]) -> None:
        self.firsts, known = firsts, firsts.first
        first = np.where(ids < len(known), known[np.minimum(ids, len(known) - 1)], NO_TOKEN)
        self.size = int(first.max(initial=0)) + 1  # nothing is drawn from none
        # Those that have none are in a column of their own, which is cut off.
        self._first = mx.array(np.where(first == NO_TOKEN, self.size, first))
        self.mask = mx.array(np.where(first == NO_TOKEN, -np.inf, 0).astype(np.float32))
        self.counts = mx.array(firsts.counts)

    def logits(self, rows: Array) -> Array:
        """f32[rows, up to the last target id] of rows f32[rows, columns]: the probabilities of
        draft ids with the same first id add up; -inf where there is none."""
        rows = rows + self.mask
        highest = rows.max(axis=-1, keepdims=True)
        sums = mx.zeros((self.size + 1, rows.shape[0]))  # a column takes five times as long
        sums = sums.at[self._first].add(mx.exp(rows - highest).T)
        return mx.log(sums[: self.size].T) + highest

    def expect(self, logprobs: Array, sampler: Sampling, positions: Sequence[int]) -> Array:
        """Log-probabilities f[rows, columns] that the target draws what an id stands for: as
        `Sampling.expect` for its first target id, shared as the draft shares that.

        logprobs: -inf for ids that stand for none.
        """
        if not sampler.filters:  # the same without adding up
            return sampler.expect(logprobs, positions, (self._first, self.size + 1))
        own = self.logits(logprobs)
        gained = mx.where(own > -mx.inf, sampler.expect(own, positions) - own, -mx.inf)
        gained = mx.pad(gained, [(0, 0), (0, 1)], constant_values=-mx.inf)
        return logprobs + gained[:, self._first]

    def most_probable(self, row: Array, chosen: Array) -> Array:
        """The column i[1] of the most probable id of a row f[1, columns] that begins with `chosen`,
        a target id i[1]."""
        return mx.argmax(mx.where(self._first == chosen, row, -mx.inf), axis=-1)
