"""What is looked up: a dictionary as a drafter and as a source, and rows of the logit store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, log
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import at_least, counted, table_of
from trees import ids

from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.lookup import (
    KEPT,
    SLOTS,
    DictionaryDrafter,
    LogitStore,
    dictionary_sources,
    logit_sources,
    tail_of,
)
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context, Round
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import SOURCE, Dictionaries
from tokalign.tables.logit_rows import LOG_ODDS
from tokalign.tables.token_tree import TokenTree

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 30


@cache
def table() -> BackoffTable:
    return counted(TEXT)


contexts = st.lists(st.integers(0, 9), max_size=12)


@given(text=contexts, limit=st.integers(0, 8), p_min=st.sampled_from([0.05, 0.4, 0.9]))
def test_a_proposal_is_the_tables_chain_with_its_probabilities(
    text: Any, limit: int, p_min: float
) -> None:
    known = at_least(table(), p_min)
    drafter, chain = DictionaryDrafter(known, max_tokens=5), known.follow(text, min(limit, 5))
    assert drafter.propose(Context(text), limit).tree == chain
    assert len(chain.probabilities) == len(chain) <= min(limit, 5)
    assert all(0 < probability <= 1 for probability in chain.probabilities)
    assert set(chain.sources) <= {SOURCE}


@given(text=contexts)
def test_a_source_expects_the_tables_chain_id_by_id(text: Any) -> None:
    [source] = dictionary_sources(Dictionaries({SOURCE: table()}))
    state: Any = source.follow(text)
    chain = at_least(table(), 0.0).follow(text, 1)
    for token, probability in zip(chain.ids, chain.probabilities, strict=True):
        [(expected, odds), *_] = source.expect(state)
        assert token == expected
        assert 1 / (1 + exp(-odds)) == pytest.approx(probability, abs=0.005)


def test_alternatives_are_offered_after_the_best_id_and_less_surely_than_the_table_says() -> None:
    alternatives = counted([1, 2, 1, 2, 1, 3, 1, 2, 1, 4, 1, 3] * 20)
    [source] = dictionary_sources(Dictionaries({SOURCE: alternatives}))
    state: Any = source.follow(ids(1))
    (best, surest), *others = source.expect(state)
    assert ((best, surest), [token for token, _ in others]) == (
        alternatives.expected(ids(1))[0],
        [3, 4],
    )
    for (_, offered), (_, said) in zip(others, alternatives.expected(ids(1))[1:], strict=True):
        assert offered < said < surest


SIZE = 97
RULES = {"left": (5, 3), "right": (11, 7)}
"""Two languages of the same ids: which id usually follows one, as factor and summand."""


def follower(language: str, token: int) -> int:
    factor, summand = RULES[language]
    return (factor * token + summand) % SIZE


def text_in(language: str, length: int = 400) -> list[int]:
    """Seven ids in ten are the usual ones."""
    draw, text = Random(1), [1]
    while len(text) < length:
        usual = draw.random() < 0.7
        text.append(follower(language, text[-1]) if usual else draw.randrange(SIZE))
    return text


LEFT, RIGHT = text_in("left"), text_in("right")


def learned(language: str) -> BackoffTable:
    entries: Any = {(token,): ((follower(language, token),), 0.6) for token in range(SIZE)}
    return table_of(entries, SIZE)


def both() -> Dictionaries:
    """Each has an answer to everything, wrong ones for the other language's text."""
    return Dictionaries({f"dictionary:{language}": learned(language) for language in RULES})


def drafting(method: str, table: Any) -> Drafting:
    return Drafting(options=DraftingOptions(method=method), dictionary=table)


@pytest.mark.parametrize("method", ["dictionary", "hybrid"])
def test_a_proposal_names_the_dictionary_that_answered(method: str) -> None:
    one, other = ids(1), ids(2)
    tables = {f"dictionary:{n}": table_of({(n,): ((n + 5,), 0.6)}, SIZE) for n in (1, 2)}
    for text, names in ((one, {"dictionary:1"}), (other, {"dictionary:2"}), (ids(9), set())):
        drafter = make_drafter(drafting(method, Dictionaries(tables)))
        assert set(drafter.propose(Context(text), 1).tree.sources) == names


def test_of_two_dictionaries_the_one_that_fits_the_text_is_learned() -> None:
    """Also when the text changes over to the other language."""
    drafter = make_drafter(drafting("hybrid", both()))
    proposed = list[str]()
    for event in replay(ids(*LEFT[:200], *RIGHT[:200]), drafter, prompt_tokens=1):
        if isinstance(event, Round):
            proposed += [event.tree.sources[0] if event.tree else ""] * len(event.emitted)
    share = [proposed[begin : begin + 50].count("dictionary:left") / 50 for begin in (50, 340)]
    assert share[0] > 0.9
    assert share[1] < 0.2


FENCE, PYTHON, NO_CODE, END, SPECIAL = range(SIZE - 5, SIZE)
SPELLED = {FENCE: b"```", PYTHON: b"python", NO_CODE: b"text", END: b"\n", SPECIAL: b""}
TOKENS = [SPELLED.get(token, b" x") for token in range(SIZE)]


def asked(text: Sequence[int], **others: BackoffTable) -> list[str]:
    """Who is asked after a text: a dictionary of prose, which is right about LEFT, or of code."""
    tables = {"dictionary:en": learned("left"), "dictionary:code": learned("right")}
    tables |= {f"dictionary:{name}": table for name, table in others.items()}
    sources = dictionary_sources(Dictionaries(tables, TOKENS))
    for size in (len(text) // 2, len(text)):
        states = [source.follow(ids(*text[:size])) for source in sources]
    return [name for name, state in zip(tables, states, strict=True) if state is not None]


def test_a_fence_says_which_dictionary_is_asked() -> None:
    prose, code = ["dictionary:en"], ["dictionary:code"]
    opened = [*LEFT[:30], END, FENCE, PYTHON, END]
    closed = [*opened, 5, 6, END, FENCE, END]
    assert asked(LEFT[:30]) == prose
    assert asked(opened[:-1]) == prose
    assert asked(opened) == asked([*opened, 5, 6, FENCE]) == code  # a fence begins its line
    assert asked(closed) == prose
    assert asked([*opened, SPECIAL]) == prose  # the next turn
    assert asked([*LEFT[:30], END, FENCE, NO_CODE, END]) == prose


def test_who_proves_right_is_asked_whatever_the_block_is_called() -> None:
    opened = [*LEFT[:30], END, FENCE, PYTHON, END]
    assert "dictionary:en" in asked([*opened, *LEFT[:40]])
    assert "dictionary:code" in asked([*LEFT[:40], *RIGHT[:20]])
    assert asked([*LEFT[:40], *RIGHT[:60]]) == ["dictionary:code"]


def test_answers_of_chat_models_are_asked_beside_the_best_unless_they_are_never_right() -> None:
    chat = learned("left")
    assert asked(LEFT[:30], chat=chat) == ["dictionary:en", "dictionary:chat"]
    opened = [*LEFT[:30], END, FENCE, PYTHON, END]
    assert asked([*opened, *RIGHT[:20]], chat=chat) == ["dictionary:code", "dictionary:chat"]
    assert asked([*opened, *RIGHT[:160]], chat=chat) == ["dictionary:code"]


# -- the logit store -------------------------------------------------------------------------------


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


FOUND = 8
"""Ids of such a row that are likely enough to be looked at: 0.5 ** 9 is less than 0.003."""


def test_every_row_of_a_tree_is_found_under_the_ids_before_it() -> None:
    """After 5 6 7 comes the tree 1-2, 3; the row after 2 is that of 7 1 2, and not of 3 or 1 3."""
    store, tree = LogitStore(), TokenTree(ids(1, 2, 3), (-1, 0, -1), ("a",) * 3)
    store.learn(ids(5, 6, 7), tree, *rows(100, 200, 300, 400))
    expected = {(5, 6, 7): 100, (6, 7): 100, (7,): 100, (6, 7, 1): 200, (1,): 200}
    expected |= {(7, 1, 2): 300, (2,): 300, (6, 7, 3): 400, (7, 3): 400, (3,): 400}
    for key, first in expected.items():
        found = after(store, *key)
        assert found is not None
        assert [token for token, _ in found] == list(range(first, first + FOUND))
        probabilities = [1 / (1 + exp(-odds)) for _, odds in found]
        assert probabilities == pytest.approx([0.5**n for n in range(1, FOUND + 1)], rel=0.04)
    known, least = store.rows, 1 / (1 + exp(-LOG_ODDS[0]))
    for row_ids, codes in zip(known.ids.tolist(), known.codes.tolist(), strict=True):
        assert row_ids == list(range(row_ids[0], row_ids[0] + KEPT)), "all of them are kept"
        probabilities = [1 / (1 + exp(-LOG_ODDS[code])) for code in codes]
        all_of_row = [max(least, 0.5**n) for n in range(1, KEPT + 1)]
        assert probabilities == pytest.approx(all_of_row, rel=0.04)
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
        assert [token for token, _ in found] == list(range(50, 50 + FOUND))
        assert source.expect(source.follow(ids(8, 8, 8))) is None
