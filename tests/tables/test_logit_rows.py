"""Rows of likely ids: keys of one to three ids, and log-odds in one byte each."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
from small_tables import bundle_of

from tokalign.tables.logit_rows import ID_BITS, LOG_ODDS, LogitRows, codes_of, joined, keys_of

SIZE = 9


def rows(
    tail: int = 3 << 2 * ID_BITS | 8 << ID_BITS | 2, *, likely: Any = (4, 8), kind: int = 3
) -> LogitRows:
    """The rows of the last one, two and three ids of a text; the first `kind` of them."""
    keys = keys_of(np.array([tail], dtype=np.uint64)).reshape(-1)[:kind]
    ids = np.array([likely] * kind, dtype=np.uint32)
    return LogitRows(keys, ids, np.full_like(ids, 100, dtype=np.uint8))


def read(table: LogitRows, size: int = SIZE) -> LogitRows:
    bundle = bundle_of(table.to_sections())
    object.__setattr__(bundle, "parameters", {"vocabulary_size": size})
    return LogitRows.from_bundle(bundle)


def test_log_odds_are_kept_to_a_step_and_never_overflow() -> None:
    probabilities = np.array([0.0, 1e-9, 0.001, 0.3, 0.5, 0.97, 0.9995, 1 - 2.0**-20, 1.0])
    with np.errstate(divide="ignore"):
        codes = codes_of(np.log(probabilities))
    assert codes.dtype == np.uint8
    assert (np.diff(codes.astype(int)) >= 0).all()
    assert (codes[0], codes[-1]) == (0, 255)
    for probability, code in zip(probabilities[2:6], codes[2:6], strict=True):
        assert abs(LOG_ODDS[code] - log(probability / (1 - probability))) <= 1 / 32
    assert np.isclose(exp(LOG_ODDS[128]), 1.0)


def test_keys_are_the_last_ids_and_how_many_they_are() -> None:
    tail = 7 << 2 * ID_BITS | 5 << ID_BITS | 6
    [[one], [two], [three]] = keys_of(np.array([tail], dtype=np.uint64)).tolist()
    assert (one, two, three) == (6 << 2 | 1, (5 << ID_BITS | 6) << 2 | 2, tail << 2 | 3)


def test_rows_come_back_from_a_table_and_join() -> None:
    both = joined([read(rows()), rows(1)])
    assert len(both) == 6
    assert both.ids.shape == both.codes.shape == (6, 2)
    assert both.keys[:3].tolist() == rows().keys.tolist()
    # A stranger's table, or one of another version, may keep more or fewer.
    mixed = joined([read(rows()), read(rows(1, likely=(4, 8, 5)))])
    assert mixed.ids.shape == mixed.codes.shape == (6, 2)
