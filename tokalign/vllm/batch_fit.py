"""Which dictionaries fit which requests of a batch: `DictionaryFit`, started at the end of a text.

It is computed anew in every step from the last `PROMPT_END` ids of each request, so it needs no
state and follows requests to whatever row they are moved. An older id would count less than one
part in sixty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tokalign.runtime.draft.dictionary_fit import (
    FIRST_SHARE,
    LEAST_OF_BEST,
    LEAST_SHARE,
    PROMPT_END,
    RATE,
)
from tokalign.tables.batch_lookup import BatchLookup, Ids
from tokalign.tables.dictionary import MAX_CONTEXT

ENDING = PROMPT_END + MAX_CONTEXT
"""How many ids at the end of each text are looked at."""

_AGES = np.arange(PROMPT_END)
_WEIGHTS = RATE * (1 - RATE) ** _AGES


def fitting(
    tables: Sequence[BatchLookup], endings: Ids, lengths: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which table fits which text, b[tables, texts].

    endings: i64[texts, ENDING], the last ids of each text, the very last one first, NO_ID where a
        text has no more. lengths: i64[texts].
    Cost: one look-up of each table for each of the last `PROMPT_END` ids, all at once.
    """
    came = endings[:, :PROMPT_END]
    before = sliding_window_view(endings[:, 1:], MAX_CONTEXT, axis=1)[:, :PROMPT_END]
    before = before.reshape(-1, MAX_CONTEXT)
    compared = np.clip(lengths - 1, 0, PROMPT_END)
    counts = compared[:, None] > _AGES
    assumed = FIRST_SHARE * (1 - RATE) ** compared
    shares = np.empty((len(tables), len(endings)))
    for share, lookup in zip(shares, tables, strict=True):
        found = lookup.predict(before)
        sure = found.probabilities >= lookup.table.parameters.p_min
        right = (found.ids.reshape(came.shape) == came) & sure.reshape(came.shape) & counts
        share[:] = assumed + right @ _WEIGHTS
    least = np.maximum(LEAST_SHARE, LEAST_OF_BEST * shares.max(axis=0, initial=0))
    return np.asarray(shares >= least)
