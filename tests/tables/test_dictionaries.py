"""Several dictionaries as one: the longest match answers, then the surer one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tables import counted, table_of

from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionaries


def published(entries: Any) -> BackoffTable:
    return table_of(entries, 100)


def test_the_longest_match_answers_under_its_own_name() -> None:
    one = published({(1,): ((7,), 0.9)})
    other = published({(2, 1): ((8, 9), 0.5), (3,): ((4,), 0.4)})
    both = Dictionaries({"dictionary:a": one, "dictionary:b": other})
    assert len(both) == len(one) + len(other)
    answer = both.follow([2, 1], 5)  # type: ignore[list-item]
    assert (answer.ids, set(answer.sources)) == ((8, 9), {"dictionary:b"})
    answer = both.follow([5, 1], 5)  # type: ignore[list-item]
    assert (answer.ids, answer.sources) == ((7,), ("dictionary:a",))
    assert not both.follow([6], 5)  # type: ignore[list-item]


@pytest.mark.parametrize("surer", [0, 1])
def test_between_equal_matches_the_surer_one_answers(surer: int) -> None:
    odds = [0.3, 0.3]
    odds[surer] = 0.6
    tables = {str(n): published({(1,): ((n,), odds[n])}) for n in range(2)}
    assert Dictionaries(tables).follow([1], 1).ids == (surer,)  # type: ignore[list-item]


ENTRIES: Any = {(1,): ((2,), 0.5), (4, 1): ((3,), 0.5), (9, 4, 1): ((5,), 0.5)}


@given(st.lists(st.integers(0, 9), max_size=10))
def test_a_match_is_as_long_as_the_longest_stored_suffix(ids: Any) -> None:
    stored = [n for n in range(1, len(ids) + 1) if tuple(ids[-n:]) in ENTRIES]
    assert published(ENTRIES).match_length(ids) == max(stored, default=0)


def test_the_match_of_a_back_off_table_is_the_longest_counted_suffix() -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 30
    table: Any = counted(text)
    assert table.match_length([50]) == 0
    lengths = [table.match_length(text[:n]) for n in range(1, 40)]
    assert max(lengths) > 1
    for n, length in enumerate(lengths, 1):
        assert table.match_length(text[n - length : n]) == length
        assert (table.predict(text[:n]) is None) == (length == 0)
