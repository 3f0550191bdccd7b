"""Dictionaries that do not know the text are not asked, and are asked again when they do."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from small_tables import table_of

from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.lookup import (
    PROMPT_END,
    DictionaryDrafter,
    DictionaryFit,
    dictionary_sources,
)
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.rounds import Context
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionaries

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


def test_before_any_text_every_dictionary_is_asked() -> None:
    assert fitting([]) == {"dictionary:left", "dictionary:right"}


@pytest.mark.parametrize(("text", "name"), [(LEFT, "left"), (RIGHT, "right")])
def test_a_prompt_chooses(text: list[int], name: str) -> None:
    assert fitting(text[:60]) == {f"dictionary:{name}"}


def test_a_long_prompt_is_judged_by_its_end() -> None:
    assert fitting([*LEFT, *RIGHT[:PROMPT_END]]) == {"dictionary:right"}


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


def test_a_hybrid_names_the_dictionary_that_answered() -> None:
    drafter = make_drafter(Drafting(method="hybrid", dictionary=both()), None)
    text: Any = LEFT[:60]
    tree = drafter.propose(Context(text), 4).tree
    assert tree.ids[0] == follower("left", text[-1])
    assert "dictionary:left" in tree.sources
    assert "dictionary:right" not in tree.sources


@pytest.mark.parametrize("method", ["dictionary", "hybrid"])
def test_the_wrong_language_costs_next_to_nothing(method: str) -> None:
    def rounds(table: Any) -> int:
        statistics = Statistics()
        drafter = make_drafter(Drafting(method=method, dictionary=table), None)
        for event in replay(LEFT, drafter, prompt_tokens=60):  # type: ignore[arg-type]
            statistics.observe(event)
        return statistics.rounds

    right_one = both().by_source["dictionary:left"]
    assert rounds(both()) <= rounds(right_one) * 1.02
    assert rounds(right_one) < rounds(both().by_source["dictionary:right"])


def test_a_proposal_of_several_names_the_dictionary_that_answered() -> None:
    drafter = DictionaryDrafter(both())
    tree = drafter.propose(Context(RIGHT[:50]), 4).tree  # type: ignore[arg-type]
    assert (tree.ids[0], set(tree.sources)) == (follower("right", RIGHT[49]), {"dictionary:right"})
