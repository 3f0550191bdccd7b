"""A batch is drafted as the drafters of the MLX runtime draft for each request alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from batches import Batch, corpus_lines, make_batch, two_tables
from numpy.typing import NDArray
from small_tables import at_least, counted
from trees import longest_match

from tokalign.errors import UsageError
from tokalign.runtime.draft.context_copy import AGREED, LATEST, ONLY, PRIORS
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.rounds import Context
from tokalign.storage import TABLES, shipped
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import read_bundle
from tokalign.vllm.batch_drafter import LONGEST_MATCH, NO_ID, P_MIN, BatchDrafter, BatchLookup

BATCH = make_batch(60)


def propose(drafter: BatchDrafter, batch: Batch, limit: int = 8) -> list[list[int]]:
    return drafter.propose(batch.rows, batch.lengths, np.full(len(batch.texts), limit))


class Copies:
    """Context copy by brute force, with its priors as they are: the law in a few lines."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self.length, self.ends = longest_match(text[-LONGEST_MATCH:], text, len(text) - 1)

    def _following(self, end: int) -> int | None:
        return self._text[end] if end < len(self._text) else None

    def expected(self) -> list[tuple[int | None, float]]:
        if not self.ends:
            return []
        first, latest = self._following(self.ends[0]), self._following(self.ends[-1])
        kind = ONLY if len(self.ends) == 1 else AGREED if first == latest else LATEST
        return [(latest, PRIORS[kind][min(self.length, len(PRIORS[kind])) - 1])]

    def advance(self, token: int) -> None:
        self.ends = [end + 1 for end in self.ends if self._following(end) == token]
        self.length = min(self.length + 1, LONGEST_MATCH)


def chain_of(text: list[Any], tables: Sequence[BackoffTable], limit: int) -> list[int]:
    """What the surest source expects, one id after the other."""
    copies, chain, together = Copies(text), list[int](), 1.0
    while len(chain) < limit:
        said = [one for one in copies.expected() if one[0] is not None]
        said += filter(None, (table.predict([*text, *chain]) for table in tables))  # type: ignore
        if not said:
            break
        token, probability = max(said, key=lambda one: one[1])
        together *= probability
        if together < P_MIN:
            break
        assert token is not None
        chain.append(token)
        copies.advance(token)
    return chain


@pytest.mark.parametrize("p_min", [None, 0.1])
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_a_dictionary_alone_proposes_what_the_dictionary_method_does(
    limit: int, p_min: float | None
) -> None:
    table = two_tables()["dictionary:a"]
    drafter = BatchDrafter({"dictionary": table}, copies=False, max_tokens=8, p_min=p_min)
    alone = DictionaryDrafter(table if p_min is None else at_least(table, p_min))
    wanted = [list(alone.propose(Context(text), limit).tree.ids) for text in BATCH.texts]
    assert propose(drafter, BATCH, limit) == wanted
    assert sum(map(bool, wanted)) > (20 if p_min is None else 1)


def test_copies_alone_propose_what_occurred_before() -> None:
    found = propose(BatchDrafter({}, max_tokens=8), BATCH)
    assert found == [chain_of(text, [], 8) for text in BATCH.texts]
    assert max(map(len, found)) == 8


@pytest.mark.parametrize("seed", range(3))
def test_the_surest_source_is_followed(seed: int) -> None:
    batch, tables = make_batch(60, seed), two_tables()
    wanted = [chain_of(text, [*tables.values()], 8) for text in batch.texts]
    assert propose(BatchDrafter(tables, max_tokens=8), batch) == wanted


def test_limits_are_kept_request_by_request() -> None:
    drafter = BatchDrafter(two_tables(), max_tokens=6)
    limits = np.arange(len(BATCH.texts)) % 9
    found = drafter.propose(BATCH.rows, BATCH.lengths, limits)
    free = propose(drafter, BATCH)
    assert found == [one[:limit] for one, limit in zip(free, limits, strict=True)]
    assert max(map(len, free)) <= 6
    assert drafter.propose(BATCH.rows[:0], BATCH.lengths[:0], limits[:0]) == []


def test_nothing_to_draft_with_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to draft with"):
        BatchDrafter({}, copies=False, max_tokens=8)


def endings_of(texts: list[list[int]], width: int = 9) -> NDArray[np.int64]:
    endings = np.full((len(texts), width), NO_ID)
    for row, text in zip(endings, texts, strict=True):
        last = text[: -width - 1 : -1]
        row[: len(last)] = last
    return endings


def assert_alike(table: BackoffTable, texts: list[Any]) -> None:
    for text, *found in zip(texts, *BatchLookup(table).predict(endings_of(texts)), strict=True):
        one = table.predict(text)
        if one is None:
            assert found[0] == NO_ID
        else:
            assert tuple(found) == one


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
