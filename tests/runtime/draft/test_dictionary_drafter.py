"""A dictionary as a drafter and as a source."""

from __future__ import annotations

from functools import cache
from math import exp
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tables import counted, table_of

from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.lookup import (
    PROMPT_END,
    DictionaryDrafter,
    DictionaryFit,
    dictionary_sources,
)
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import SOURCE, Dictionaries

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 30


@cache
def table() -> BackoffTable:
    return counted(TEXT)


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
    alternatives = counted([1, 2, 1, 2, 1, 3, 1, 2, 1, 4, 1, 3] * 20)
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


def test_the_text_that_was_counted_is_decoded_in_few_steps() -> None:
    statistics = Statistics()
    for event in replay(TEXT, DictionaryDrafter(table())):  # type: ignore[arg-type]
        statistics.observe(event)
    assert statistics.tokens_per_round > 4
    assert statistics.generation_tokens == len(TEXT)


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


def fitting(text: Any) -> set[str]:
    return set(DictionaryFit(both().by_source).follow(text))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ([], ["left", "right"]),
        (LEFT[:60], ["left"]),
        (RIGHT[:60], ["right"]),
        ([*LEFT, *RIGHT[:PROMPT_END]], ["right"]),
    ],
)
def test_before_any_text_all_are_asked_and_then_those_that_fit_its_end(
    text: list[int], names: list[str]
) -> None:
    assert fitting(text) == {f"dictionary:{name}" for name in names}


def test_a_text_that_changes_over_is_followed() -> None:
    fit, text = DictionaryFit(both().by_source), [*LEFT[:100], *RIGHT[:100]]
    seen = [set(fit.follow(text[:n])) for n in range(1, 201)]  # type: ignore[arg-type]
    assert seen[98] == {"dictionary:left"}
    assert seen[198] == {"dictionary:right"}
    again = next(n for n in range(100, 200) if "dictionary:right" in seen[n])
    assert again < 110, "a dictionary is asked again within a few ids"


def test_a_text_is_read_alike_in_one_piece_and_in_several() -> None:
    text: Any = [*LEFT[:40], *RIGHT[:20]]
    whole, pieces = DictionaryFit(both().by_source), DictionaryFit(both().by_source)
    for end in (1, 5, 6, 30, 45, 60):
        found = pieces.follow(text[:end])
    assert list(found) == list(whole.follow(text))


def test_only_the_sources_of_those_that_fit_are_asked() -> None:
    text: Any = LEFT[:60]
    states = {source.name: source.follow(text) for source in dictionary_sources(both())}
    assert states["dictionary:right"] is None
    [left] = [one for one in dictionary_sources(both()) if one.name == "dictionary:left"]
    state = states["dictionary:left"]
    assert state is not None
    assert [token for token, _ in left.expect(state)] == [follower("left", text[-1])]
    assert [source.name for source in dictionary_sources(learned("left"))] == ["dictionary"]


def drafting(method: str, table: Any) -> Drafting:
    return Drafting(options=DraftingOptions(method=method), dictionary=table)


@pytest.mark.parametrize("method", ["dictionary", "hybrid"])
def test_a_proposal_names_the_dictionary_that_answered(method: str) -> None:
    drafter = make_drafter(drafting(method, both()), None)
    tree = drafter.propose(Context(LEFT[:60]), 4).tree  # type: ignore[arg-type]
    assert tree.ids[0] == follower("left", LEFT[59])
    assert "dictionary:left" in tree.sources
    assert "dictionary:right" not in tree.sources


@pytest.mark.parametrize("method", ["dictionary", "hybrid"])
def test_the_wrong_language_costs_next_to_nothing(method: str) -> None:
    def rounds(table: Any) -> int:
        statistics = Statistics()
        drafter = make_drafter(drafting(method, table), None)
        for event in replay(LEFT, drafter, prompt_tokens=60):  # type: ignore[arg-type]
            statistics.observe(event)
        return statistics.rounds

    right_one = both().by_source["dictionary:left"]
    assert rounds(both()) <= rounds(right_one) * 1.02
    assert rounds(right_one) < rounds(both().by_source["dictionary:right"])
