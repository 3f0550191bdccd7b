"""Which dictionaries fit which requests of a batch: `DictionaryFit` for all of them at once.

For each row it keeps how well each dictionary did on the text so far, and the last ids of the text.
If a row's text goes on from these ids, only the new ids are read. Otherwise, for example because
vLLM has given the row to another request, the last `PROMPT_END` ids of the text are read again. Two
texts with the same last ids at the same place are mistaken for one; the second then takes over how
well the dictionaries did on the first, and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.draft.dictionary_fit import (
    FIRST_SHARE,
    LEAST_OF_BEST,
    LEAST_SHARE,
    PROMPT_END,
    RATE,
)
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.vllm.batch_lookup import NO_ID, BatchLookup, Ids

Rows = NDArray[Any]
"""Token ids i[requests, longest context]; what is after the end of a request means nothing."""


def last_ids(rows: Rows, row: Ids, lengths: Ids) -> Ids:
    """i64[texts, MAX_CONTEXT]: the last ids of texts, the very last one first, else NO_ID.

    row, lengths: i64[texts], where in `rows` each text begins, and how many ids of it count.
    """
    places = lengths[:, None] - 1 - np.arange(MAX_CONTEXT)
    inside = places >= 0
    found = rows[row[:, None], np.where(inside, places, 0)]
    return np.where(inside, found, NO_ID).astype(np.int64)


class BatchFit:
    """Follows the texts of all rows with several dictionaries, and says which of them fit."""

    def __init__(self, tables: Sequence[BatchLookup]) -> None:
        self._tables = tuple(tables)
        self._lengths = np.zeros(0, dtype=np.int64)
        self._endings = np.zeros((0, MAX_CONTEXT), dtype=np.int64)
        self._shares = np.zeros((len(self._tables), 0))

    def follow(self, rows: Rows, lengths: Ids) -> NDArray[np.bool_]:
        """Read on in all texts; returns which dictionary fits which one, b[dictionaries, requests].

        lengths: i64[requests].
        Cost: one look-up of each dictionary for each id that is new, all at once.
        """
        every = np.arange(len(lengths))
        shares, new = self._begin(rows, lengths)
        row = np.repeat(every, new)
        age = np.arange(len(row)) - np.repeat(np.cumsum(new) - new, new)
        place = lengths[row] - 1 - age
        came, before = rows[row, place], last_ids(rows, row, place)
        weights = RATE * (1 - RATE) ** age
        shares *= (1 - RATE) ** new
        for share, lookup in zip(shares, self._tables, strict=True):
            found = lookup.predict(before)
            right = (found.ids == came) & (found.probabilities >= lookup.table.parameters.p_min)
            share += np.bincount(row, weights * right, minlength=len(lengths))
        self._shares, self._lengths = shares, lengths
        self._endings = last_ids(rows, every, lengths)
        least = np.maximum(LEAST_SHARE, LEAST_OF_BEST * shares.max(axis=0, initial=0))
        return np.asarray(shares >= least)

    def _begin(self, rows: Rows, lengths: Ids) -> tuple[NDArray[np.float64], Ids]:
        """The shares so far, f64[dictionaries, requests], and how many ids of each text are new."""
        known = min(len(lengths), len(self._lengths))
        seen, new = self._lengths[:known], lengths[:known] - self._lengths[:known]
        goes_on = (new >= 0) & (new <= PROMPT_END)
        before = last_ids(rows, np.arange(known), np.where(goes_on, seen, 0))
        goes_on &= (before == self._endings[:known]).all(axis=1)
        shares = np.full((len(self._tables), len(lengths)), FIRST_SHARE)
        shares[:, :known] = np.where(goes_on, self._shares[:, :known], FIRST_SHARE)
        fresh = np.full(len(lengths), PROMPT_END)
        fresh[:known] = np.where(goes_on, new, PROMPT_END)
        return shares, np.clip(fresh, 0, np.maximum(lengths - 1, 0))
