"""Many look-ups in a back-off table at once, with NumPy, for engines that decode in batches.

A look-up in Python takes some microseconds, which is nothing for one request and a tenth of a pass
for sixty-four. Here all suffixes of all texts are hashed, looked up and compared by the same few
array operations, so a batch takes hardly longer than one text. The answers are those of
`BackoffTable.predict`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.backoff import BackoffTable
from tokalign.tables.binary_fuse import FINGERPRINT_WIDTH, fingerprints, mix

NO_ID = -1
"""Where a text has no further id, and where a table expects none."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Predictions:
    """For each text the most probable next id; NO_ID where none is known.

    ids: i64[texts]. probabilities: f64[texts], of no meaning where there is no id.
    lengths: i64[texts], of the longest stored suffix.
    """

    ids: Ids
    probabilities: NDArray[np.float64]
    lengths: NDArray[np.int64]


class BatchLookup:
    """A back-off table that is asked about many texts at once."""

    def __init__(self, table: BackoffTable) -> None:
        self.table = table
        self.max_context = table.parameters.max_context
        self._shape = table.parameters.shape
        self._slots, self._ids, self._probabilities = table.arrays

    def predict(self, endings: Ids) -> Predictions:
        """The most probable next id of each text.

        endings: i64[texts, n], the last ids of each text, the very last one first, NO_ID where a
            text has no more; n is at least `max_context`.
        Cost: about 50 µs, and 0.5 µs for each text.
        """
        reversed_ids = endings.T[: self.max_context]
        states = self._hash(reversed_ids)
        one, two, three = self._slots[self._shape.places(states)]
        values = one ^ two ^ three
        stored = values.astype(np.uint8) == fingerprints(states)
        stored &= reversed_ids >= 0
        lengths = np.logical_and.accumulate(stored, axis=0).sum(axis=0)
        longest = np.maximum(lengths - 1, 0), np.arange(len(endings))
        numbers = values[longest] >> FINGERPRINT_WIDTH
        known = (lengths > 0) & (numbers < len(self._ids))  # a larger number is noise
        numbers = np.where(known, numbers, 0)
        if not len(self._ids):
            return Predictions(np.full(len(endings), NO_ID), np.zeros(len(endings)), lengths)
        return Predictions(
            ids=np.where(known, self._ids[numbers].astype(np.int64), NO_ID),
            probabilities=self._probabilities[numbers] / 255,
            lengths=lengths,
        )

    def _hash(self, reversed_ids: Ids) -> NDArray[np.uint64]:
        """u64[contexts, texts]: the hashes of the last id, of the last two, and so on."""
        states = np.empty(reversed_ids.shape, dtype=np.uint64)
        state = np.full(reversed_ids.shape[1], self._shape.start, dtype=np.uint64)
        for depth, ids in enumerate(reversed_ids.astype(np.uint64)):
            state = states[depth] = mix(state, ids)
        return states
