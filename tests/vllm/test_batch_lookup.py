"""Looking up a batch gives what looking up each text gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import corpus_lines, two_tables
from numpy.typing import NDArray
from small_tables import counted

from tokalign.storage import TABLES, shipped
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import read_bundle
from tokalign.vllm.batch_lookup import NO_ID, BatchLookup


def endings_of(texts: list[list[int]], width: int = 9) -> NDArray[np.int64]:
    endings = np.full((len(texts), width), NO_ID)
    for row, text in zip(endings, texts, strict=True):
        last = text[: -width - 1 : -1]
        row[: len(last)] = last
    return endings


def assert_alike(table: BackoffTable, texts: list[Any]) -> None:
    found = BatchLookup(table).predict(endings_of(texts))
    for number, text in enumerate(texts):
        one = table.predict(text)
        assert found.lengths[number] == table.match_length(text)
        if one is None:
            assert found.ids[number] == NO_ID
        else:
            assert (found.ids[number], found.probabilities[number]) == one


def test_every_prefix_of_a_corpus_is_looked_up_alike() -> None:
    table = two_tables()["dictionary:a"]
    lines = corpus_lines()[::5]
    prefixes = [line[:end] for line in lines for end in range(len(line) + 1)]
    answered = [prefix for prefix in prefixes if table.predict(prefix)]  # type: ignore[arg-type]
    assert len(prefixes) > 2000
    assert len(answered) > 500
    assert_alike(table, prefixes)


def test_the_shipped_table_answers_alike_where_noise_is_met() -> None:
    table = BackoffTable.from_bundle(read_bundle(next(shipped(TABLES).rglob("pl.dictionary.tok"))))
    assert isinstance(table, BackoffTable)
    rng = np.random.default_rng(1)
    texts = rng.integers(0, 32_000, (3000, 9)).tolist()
    for text in texts[::2]:  # walks of the table itself, so that long contexts are stored
        while len(text) < 20 and (one := table.predict(text)):
            text.append(one[0])
    assert_alike(table, texts)


@pytest.mark.parametrize("texts", [[], [[]], [[], [1], [1, 2]]])
def test_texts_may_be_short_and_tables_small(texts: list[list[int]]) -> None:
    assert_alike(counted([1, 2, 3] * 9), texts)
