"""The suffix automaton against search: the same repeats, the same matches, whatever the text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.runtime.draft.suffix_automaton import START, SuffixAutomaton

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
