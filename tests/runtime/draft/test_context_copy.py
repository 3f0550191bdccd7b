"""Context copy against search: what followed the longest earlier match, latest and first."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.runtime.draft.context_copy import (
    AGREED,
    FIRST,
    LATEST,
    ONLY,
    PRIORS,
    START,
    ContextCopy,
    Occurrence,
    SuffixAutomaton,
)
from tokalign.tokenizer.vocabulary import TargetId

numbers = st.lists(st.integers(0, 3).map(TargetId), max_size=40)


def ends_of_longest_match(text: list[TargetId], ahead: list[TargetId]) -> list[int]:
    """Where the longest end of text and `ahead` occurs in the text, other than as its own end."""
    whole, last = text + ahead, len(text) - (not ahead)
    for size in range(len(whole), 0, -1):
        ends = [at for at in range(size, last + 1) if text[at - size : at] == whole[-size:]]
        if ends:
            return ends
    return []


@settings(deadline=None)
@given(numbers, numbers, st.integers(0, 40))
def test_what_is_expected_is_what_search_finds(
    text: list[TargetId], ahead: list[TargetId], first: int
) -> None:
    """Whether the text came at once or in two parts. What is ahead is not yet text."""
    source = ContextCopy()
    source.follow(text[:first])
    state = source.follow(text)
    for token in ahead:
        state = source.advance(state, token)
    found = [token for token, _ in source.expect(state)]
    ends = ends_of_longest_match(text, ahead)
    if ahead:
        assert set(found) <= {text[end] for end in ends if end < len(text)}
    else:
        assert found == list(dict.fromkeys(text[end] for end in (*ends[-1:], *ends[:1])))


def test_probability_grows_with_the_match_and_with_agreement() -> None:
    copy = ContextCopy()
    for kind in PRIORS:
        grows = [copy.probability(kind, length) for length in range(1, 40)]
        assert grows == sorted(grows)
    for length in range(1, 40):
        ranked = [copy.probability(kind, length) for kind in (FIRST, LATEST, ONLY, AGREED)]
        assert ranked == sorted(ranked)


def test_a_text_that_repeats_itself_is_recognized() -> None:
    """And one that never does again is trusted less than the prior says."""
    single, text = Occurrence(2, 5, 5), SuffixAutomaton(map(TargetId, range(10)))
    new, faithful, faithless = [ContextCopy(text) for _ in range(3)]
    for _ in range(40):
        faithful.learn(single, TargetId(5))
        faithless.learn(single, TargetId(99))
    prior = new.probability(ONLY, 2)
    assert faithful.probability(ONLY, 2) > 0.75 > prior > 0.2 > faithless.probability(ONLY, 2)
    assert faithful.probability(ONLY, 6) > new.probability(ONLY, 6)


def test_an_output_may_go_beyond_the_end_of_a_text_that_it_was_predicted_by() -> None:
    predicted = SuffixAutomaton(TargetId(i) for i in (1, 2, 3, 4))
    copy = ContextCopy(predicted)
    for end, following in ((2, [3]), (4, []), (5, []), (7, [3])):
        text = [TargetId(i) for i in (1, 2, 3, 4, 5, 1, 2)[:end]]
        assert [token for token, _ in copy.expect(copy.follow(text))] == following


few_ids = st.one_of(
    st.lists(st.integers(0, 1), max_size=60),
    st.lists(st.integers(0, 4), max_size=60),
    st.lists(st.sampled_from([0, 7, 31_999, 128_255]), max_size=60),
)


def ends_of(part: Sequence[int], text: Sequence[int]) -> list[int]:
    """After how many ids of `text` each occurrence of `part` ends."""
    size = len(part)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == part]


def longest_by_search(text: list[int]) -> tuple[int, int, int] | None:
    """Length, first and latest earlier end of the longest suffix that occurred before."""
    for length in range(len(text) - 1, 0, -1):
        if ends := ends_of(text[-length:], text)[:-1]:
            return length, ends[0], ends[-1]
    return None


@settings(deadline=None)
@given(few_ids)
def test_the_longest_repeat_is_the_one_that_search_finds(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text):
        assert automaton.occurrence(automaton.longest_repeat()) == longest_by_search(text[:end])
        automaton.append(token)
    assert list(automaton.ids) == text
    assert len(automaton) == len(text)


@settings(deadline=None)
@given(few_ids, few_ids)
def test_reading_another_text_finds_its_longest_matches(text: list[int], other: list[int]) -> None:
    automaton, place = SuffixAutomaton(text), START
    for end, token in enumerate(other, start=1):
        place = automaton.advance(place, token)
        suffixes = [other[end - size : end] for size in range(end, 0, -1)]
        matched = next((suffix for suffix in suffixes if ends_of(suffix, text)), [])
        assert place.length == len(matched)
        if matched:
            occurrence = automaton.occurrence(place)
            assert occurrence is not None
            assert occurrence.first == ends_of(matched, text)[0]
            assert occurrence.latest in ends_of(matched, text)


@settings(deadline=None)
@given(few_ids, few_ids)
def test_reading_on_from_the_end_is_as_if_the_text_went_on(
    text: list[int], ahead: list[int]
) -> None:
    automaton = SuffixAutomaton(text)
    place = automaton.longest_repeat()
    for count, token in enumerate(ahead, start=1):
        place = automaton.advance(place, token)
        whole = text + ahead[:count]
        matched = next(
            (whole[at:] for at in range(len(whole)) if ends_of(whole[at:], text)), list[int]()
        )
        assert place.length == len(matched)


def test_an_append_costs_the_same_however_often_a_phrase_came() -> None:
    """In "a a a ..." every end of the text repeats; few of them are visited."""
    automaton = SuffixAutomaton([3] * 20_000)
    longest = automaton.occurrence(automaton.longest_repeat())
    assert longest == (19_999, 19_999, 19_999)
