"""Several dictionaries answer as one: the longest match, then the surer, then the first."""

from __future__ import annotations

from typing import Any

import pytest
from small_tables import table_of

from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionaries

A: Any = (1,)


def answering(token: int, probability: float, context: Any = A) -> BackoffTable:
    return table_of({context: ((token,), probability)}, 100)


@pytest.mark.parametrize(
    ("tables", "answer"),
    [
        ((answering(7, 0.3), answering(2, 0.6)), 2),
        ((answering(7, 0.6), answering(2, 0.3)), 7),
        ((answering(7, 0.6), answering(2, 0.6)), 7),
        ((answering(2, 0.6), answering(7, 0.6)), 2),
        ((answering(7, 0.9), answering(2, 0.3, (4, 1))), 2),
    ],
)
def test_what_is_expected_is_what_is_followed(tables: Any, answer: int) -> None:
    both = Dictionaries({str(n): table for n, table in enumerate(tables)})
    suffix: Any = (4, 1)
    assert both.expected(suffix)[0][0] == answer
    assert both.follow(suffix, 1).ids == (answer,)
    assert both.match_length(suffix) == max(table.match_length(suffix) for table in tables)
    assert both.expected((9,)) == ()  # type: ignore[arg-type]
