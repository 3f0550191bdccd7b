"""Context copy against search: what followed the longest earlier match, latest and first."""

from __future__ import annotations

from itertools import cycle, islice
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.runtime.draft.context_copy import (
    AGREED,
    FIRST,
    LATEST,
    ONLY,
    PRIORS,
    ContextCopy,
    CopyReliability,
)
from tokalign.runtime.draft.suffix_automaton import Occurrence
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

numbers = st.lists(st.integers(0, 3).map(TargetId), max_size=40)


def copied_by_search(text: list[TargetId], limit: int) -> list[tuple[TargetId, ...]]:
    """What followed the latest and the first earlier occurrence of the longest repeated end."""
    for size in range(len(text) - 1, 0, -1):
        end = text[-size:]
        ends = [at for at in range(size, len(text)) if text[at - size : at] == end]
        if ends:
            return [on_from(text, ends[-1], limit), on_from(text, ends[0], limit)]
    return []


def on_from(text: list[TargetId], start: int, limit: int) -> tuple[TargetId, ...]:
    """`limit` ids from `start` on, the copy being copied on where the text ends."""
    grown = list(text)
    for at in range(start, start + limit):
        grown.append(grown[at])
    return tuple(grown[len(text) :])


def assert_as_far_as_likely(guess: TokenTree, whole: tuple[TargetId, ...]) -> None:
    """All of it, or up to where it is right three times in a thousand."""
    assert guess.ids == whole[: len(guess.ids)]
    assert len(guess.ids) == len(whole) or prod(guess.probabilities) < 0.003
    assert prod(guess.probabilities[:-1]) >= 0.003


@settings(deadline=None)
@given(numbers, st.integers(1, 10), st.integers(0, 40))
def test_guesses_are_those_of_search(text: list[TargetId], limit: int, first: int) -> None:
    """Whether the text came at once or in two parts."""
    source = ContextCopy()
    source.follow(text[:first])
    source.follow(text)
    guesses = source.guesses((), limit)
    expected = copied_by_search(text, limit)
    assert len(guesses) <= len(set(expected))
    assert bool(guesses) == bool(expected)
    for guess, whole in zip(guesses, expected, strict=False):
        assert_as_far_as_likely(guess, whole)
        assert len(guess.probabilities) == len(guess.ids)
        assert all(0 < p < 1 for p in guess.probabilities)
        assert set(guess.sources) == {"copy"}


@settings(deadline=None)
@given(numbers, numbers.filter(bool), st.integers(1, 6))
def test_asking_ahead_finds_what_the_text_has(
    text: list[TargetId], ahead: list[TargetId], limit: int
) -> None:
    """What is ahead is not yet text: only what matches in the text counts."""
    source = ContextCopy()
    source.follow(text)
    guesses = source.guesses(ahead, limit)
    whole = text + ahead
    sizes = [
        size
        for size in range(1, len(whole) + 1)
        if any(text[at : at + size] == whole[-size:] for at in range(len(text) - size + 1))
    ]
    assert bool(guesses) == bool(sizes)
    if sizes:
        size = max(sizes)
        ends = [at for at in range(size, len(text) + 1) if text[at - size : at] == whole[-size:]]
        possible = [tuple(islice(cycle(text[end:] + ahead), limit)) for end in ends]
        for guess in guesses:
            assert_as_far_as_likely(
                guess, next(p for p in possible if p[: len(guess.ids)] == guess.ids)
            )


def test_probability_grows_with_the_match_and_with_agreement() -> None:
    reliability = CopyReliability()
    for kind in PRIORS:
        grows = [reliability.probability(kind, length) for length in range(1, 40)]
        assert grows == sorted(grows)
    for length in range(1, 40):
        ranked = [reliability.probability(kind, length) for kind in (FIRST, LATEST, ONLY, AGREED)]
        assert ranked == sorted(ranked)


def test_a_text_that_repeats_itself_is_recognized() -> None:
    """And one that never does again is trusted less than the prior says."""
    single = Occurrence(2, 5, 5)
    text = list(range(10))
    faithful, faithless = CopyReliability(), CopyReliability()
    for _ in range(40):
        faithful.learn(text, single, 5)
        faithless.learn(text, single, 99)
    prior = CopyReliability().probability(ONLY, 2)
    assert faithful.probability(ONLY, 2) > 0.75 > prior > 0.2 > faithless.probability(ONLY, 2)
    assert faithful.probability(ONLY, 6) > CopyReliability().probability(ONLY, 6)


def test_nothing_is_carried_from_one_request_to_the_next() -> None:
    text = [TargetId(i) for i in (1, 2, 3, 1, 2, 3, 1, 2)]
    fresh = ContextCopy()
    fresh.follow(text)
    before = fresh.guesses((), 4)
    ContextCopy().follow(text * 5)
    again = ContextCopy()
    again.follow(text)
    assert again.guesses((), 4) == before
