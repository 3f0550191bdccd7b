"""The logit store: what was written last is found, and each row of a tree under its own path."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import ids

from tokalign.runtime.draft.lookup import KEPT, SLOTS, LogitStore, logit_sources, tail_of
from tokalign.tables.logit_rows import LOG_ODDS
from tokalign.tables.token_tree import TokenTree


def after(store: LogitStore, *key: int) -> list[tuple[int, float]] | None:
    """What the store has after exactly these ids."""
    found = store.look_up(len(key))(tail_of(ids(*key)))
    return None if found is None else list(found)


def rows(*firsts: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row the ids from `first` on, shuffled; each half as likely as the one before."""
    order = np.random.default_rng(0).permutation(KEPT)
    likely = np.array([[first + place for place in order] for first in firsts])
    logprobs = np.array([[log(0.5) * (1 + place) for place in order] for _ in firsts])
    return likely, logprobs


def test_every_row_of_a_tree_is_found_under_the_ids_before_it() -> None:
    """After 5 6 7 comes the tree 1-2, 3; the row after 2 is that of 7 1 2, and not of 3 or 1 3."""
    store, tree = LogitStore(), TokenTree(ids(1, 2, 3), (-1, 0, -1), ("a",) * 3)
    store.learn(ids(5, 6, 7), tree, *rows(100, 200, 300, 400))
    expected = {(5, 6, 7): 100, (6, 7): 100, (7,): 100, (6, 7, 1): 200, (1,): 200}
    expected |= {(7, 1, 2): 300, (2,): 300, (6, 7, 3): 400, (7, 3): 400, (3,): 400}
    for key, first in expected.items():
        found = after(store, *key)
        assert found is not None
        assert [token for token, _ in found] == list(range(first, first + KEPT))
        probabilities = [1 / (1 + exp(-odds)) for _, odds in found]
        least = 1 / (1 + exp(-LOG_ODDS[0]))
        expected_row = [max(least, 0.5**n) for n in range(1, KEPT + 1)]
        assert probabilities == pytest.approx(expected_row, rel=0.04)
    for key in ((6,), (1, 3), (5, 6), (7, 2), (5, 7, 1)):
        assert after(store, *key) is None


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60))
def test_a_small_store_forgets_and_never_confuses(pairs: list[tuple[int, int]]) -> None:
    """Whatever falls out of sixteen slots: what is found is the last row of exactly these ids."""
    store, latest = LogitStore(slots=16), {}
    for first, (one, two) in enumerate(pairs):
        store.learn(ids(one, two), TokenTree(), *rows(1000 + first))
        latest[(one, two)] = latest[(two,)] = 1000 + first
    for key, first in latest.items():
        found = after(store, *key)
        assert found is None or found[0][0] == first
    assert len(store) <= 16


def test_memory_is_bounded_whatever_the_vocabulary() -> None:
    assert LogitStore().nbytes == SLOTS * (8 + 4 * KEPT + KEPT) == 22_020_096


def test_sources_ask_for_the_ends_of_the_text_and_the_path() -> None:
    store = LogitStore()
    store.learn(ids(1, 2, 3), TokenTree(), *rows(50))
    for source in logit_sources(store):
        state = source.follow(ids(9, 1))
        for token in ids(2, 3):
            state = source.advance(state, token)
        assert state == tail_of(ids(1, 2, 3))
        found = source.expect(state)
        assert found is not None
        assert [token for token, _ in found] == list(range(50, 50 + KEPT))
        assert source.expect(source.follow(ids(8, 8, 8))) is None
