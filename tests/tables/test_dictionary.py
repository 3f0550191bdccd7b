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
def test_one_of_several_is_followed(tables: Any, answer: int) -> None:
    both = Dictionaries({str(n): table for n, table in enumerate(tables)})
    assert both.follow((4, 1), 1).ids == (answer,)  # type: ignore[arg-type]
    assert both.follow((9,), 1).ids == ()  # type: ignore[arg-type]
