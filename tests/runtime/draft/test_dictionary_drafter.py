"""A dictionary as a drafter and as a source."""

from __future__ import annotations

from functools import cache
from math import exp, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.ngram_tree import grow_tree
from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.lookup import DictionaryDrafter, dictionary_sources
from tokalign.runtime.rounds import Context
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import SOURCE

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 30


def backoff_of(text: list[int]) -> BackoffTable:
    orders = []
    for n in range(1, 6):
        windows = np.lib.stride_tricks.sliding_window_view(np.array(text, dtype=np.uint16), n)
        ids, counts = np.unique(windows, axis=0, return_counts=True)
        orders.append(TokenNgrams(ids, counts))
    return make_table(grow_tree(orders), vocabulary_size=100, max_bytes=10_000)


@cache
def table() -> BackoffTable:
    return backoff_of(TEXT)


contexts = st.lists(st.integers(0, 9), max_size=12)


@given(ids=contexts, limit=st.integers(0, 8), p_min=st.sampled_from([None, 0.05, 0.4, 0.9]))
def test_a_proposal_is_the_tables_chain_with_its_probabilities(
    ids: Any, limit: int, p_min: float | None
) -> None:
    drafter = DictionaryDrafter(table(), max_tokens=5, p_min=p_min)
    chain = table().follow(ids, min(limit, 5), p_min=p_min)
    assert drafter.propose(Context(ids), limit).tree == chain
    assert len(chain.probabilities) == len(chain) <= min(limit, 5)
    assert all(0 < probability <= 1 for probability in chain.probabilities)
    assert set(chain.sources) <= {SOURCE}


@given(ids=contexts)
def test_a_source_expects_the_tables_chain_id_by_id(ids: Any) -> None:
    [source] = dictionary_sources(table())
    state: Any = source.follow(ids)
    chain = table().follow(ids, 1, p_min=0.0)
    for token, probability in zip(chain.ids, chain.probabilities, strict=True):
        [(expected, odds), *_] = source.expect(state)
        assert token == expected
        assert 1 / (1 + exp(-odds)) == pytest.approx(probability, abs=0.005)


def test_alternatives_are_offered_after_the_best_id_and_less_surely_than_the_table_says() -> None:
    alternatives = backoff_of([1, 2, 1, 2, 1, 3, 1, 2, 1, 4, 1, 3] * 20)
    [source] = dictionary_sources(alternatives)
    ids: Any = [1]
    state: Any = source.follow(ids)
    (best, surest), *others = source.expect(state)
    assert ((best, surest), [token for token, _ in others]) == (
        alternatives.expected(ids)[0],
        [3, 4],
    )
    for (_, offered), (_, said) in zip(others, alternatives.expected(ids)[1:], strict=True):
        assert offered < said < surest


@given(ids=contexts, p_min=st.floats(0.01, 1))
def test_a_chain_ends_where_it_is_no_longer_likely_enough(ids: Any, p_min: float) -> None:
    every, likely = table().follow(ids, 8, p_min=1e-9), table().follow(ids, 8, p_min=p_min)
    assert every.ids[: len(likely.ids)] == likely.ids
    assert not likely.ids or prod(likely.probabilities) >= p_min
    longer = every.probabilities[: len(likely.ids) + 1]
    assert longer == likely.probabilities or prod(longer) < p_min


def test_the_text_that_was_counted_is_decoded_in_few_steps() -> None:
    statistics = Statistics()
    for event in replay(TEXT, DictionaryDrafter(table())):  # type: ignore[arg-type]
        statistics.observe(event)
    assert statistics.tokens_per_round > 4
    assert statistics.generation_tokens == len(TEXT)
