"""Context copy against search: what followed the longest earlier match, latest and first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import longest_match

from tokalign.runtime.draft.context_copy import AGREED, LATEST, ONLY, PRIORS, ContextCopy
from tokalign.runtime.draft.suffix_automaton import START, Occurrence, SuffixAutomaton
from tokalign.tokenizer.vocabulary import TargetId

few_ids = st.one_of(
    st.lists(st.integers(0, 1).map(TargetId), max_size=60),
    st.lists(st.integers(0, 4).map(TargetId), max_size=60),
    st.lists(st.sampled_from([0, 7, 31_999, 128_255]).map(TargetId), max_size=60),
)


@settings(deadline=None)
@given(few_ids, few_ids, st.integers(0, 60))
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
    _, ends = longest_match(text + ahead, text, len(text) - (not ahead))
    if ahead:
        assert set(found) <= {text[end] for end in ends if end < len(text)}
    else:
        assert found == [text[end] for end in ends[-1:]]


def test_probability_grows_with_the_match_and_with_agreement() -> None:
    copy = ContextCopy()
    for kind in PRIORS:
        grows = [copy.probability(kind, length, 1) for length in range(1, 40)]
        assert grows == sorted(grows)
    for length in range(1, 40):
        ranked = [copy.probability(kind, length, 1) for kind in (LATEST, ONLY, AGREED)]
        assert ranked == sorted(ranked)


def test_a_text_that_repeats_itself_is_recognized() -> None:
    """And one that never does again is trusted less than the prior says."""
    single, text = Occurrence(2, 5, 5), SuffixAutomaton(map(TargetId, range(10)))
    new, faithful, faithless = [ContextCopy(text) for _ in range(3)]
    for _ in range(40):
        faithful.learn(single, TargetId(5))
        faithless.learn(single, TargetId(99))
    prior = new.probability(ONLY, 2, 5)
    assert faithful.probability(ONLY, 2, 5) > 0.75 > prior > 0.2 > faithless.probability(ONLY, 2, 5)
    assert faithful.probability(ONLY, 6, 5) > new.probability(ONLY, 6, 5)


def test_an_output_may_go_beyond_the_end_of_a_text_that_it_was_predicted_by() -> None:
    predicted = SuffixAutomaton(TargetId(i) for i in (1, 2, 3, 4))
    copy = ContextCopy(predicted)
    for end, following in ((2, [3]), (4, []), (5, []), (7, [3])):
        text = [TargetId(i) for i in (1, 2, 3, 4, 5, 1, 2)[:end]]
        assert [token for token, _ in copy.expect(copy.follow(text))] == following


@settings(deadline=None)
@given(few_ids)
def test_the_longest_repeat_is_the_one_that_search_finds(text: list[TargetId]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text):
        size, ends = longest_match(text[:end], text, end - 1)
        expected = Occurrence(size, ends[0], ends[-1]) if ends else None
        assert automaton.occurrence(automaton.longest_repeat()) == expected
        automaton.append(token)
    assert list(automaton.ids) == text
    assert len(automaton) == len(text)


@pytest.mark.parametrize("goes_on", [False, True])
@settings(deadline=None)
@given(few_ids, few_ids)
def test_reading_another_text_or_on_from_the_end_finds_the_longest_matches(
    goes_on: bool, text: list[TargetId], other: list[TargetId]
) -> None:
    automaton = SuffixAutomaton(text)
    place = automaton.longest_repeat() if goes_on else START
    read = text.copy() if goes_on else []
    for token in other:
        place = automaton.advance(place, token)
        read.append(token)
        size, ends = longest_match(read, text, len(text))
        assert place.length == size
        occurrence = automaton.occurrence(place)
        assert (occurrence is None) == (not ends)
        if occurrence is not None:
            assert occurrence.first == ends[0]
            assert occurrence.latest in ends


def test_an_append_costs_the_same_however_often_a_phrase_came() -> None:
    """In "a a a ..." every end of the text repeats; few of them are visited."""
    automaton = SuffixAutomaton([TargetId(3)] * 20_000)
    longest = automaton.occurrence(automaton.longest_repeat())
    assert longest == (19_999, 19_999, 19_999)


def followed(earlier: list[int], written: list[int]) -> list[int | None]:
    """What the copy expects first, before each id that is written after an earlier text."""
    copy = ContextCopy()
    text, expected = [*map(TargetId, earlier)], list[int | None]()
    for token in written:
        guesses = copy.expect(copy.follow(text))
        expected.append(guesses[0][0] if guesses else None)
        text.append(TargetId(token))
    return expected


@pytest.mark.parametrize(
    "written",
    [
        [*range(100, 110), 7, *range(111, 130)],  # an id stands for another
        [*range(100, 110), 7, 8, 9, *range(111, 130)],  # several for one
        [*range(100, 110), 7, *range(114, 130)],  # one for several
        [*range(100, 110), *range(113, 130)],  # some are missing
        [*range(100, 110), 7, 8, *range(110, 130)],  # some are new
    ],
)
def test_a_copy_goes_on_where_the_text_meets_again(written: list[int]) -> None:
    expected = followed([1, 2, 3, *range(100, 130), 4, 5], [3, *written])
    right = [guess == token for guess, token in zip(expected, [3, *written], strict=True)]
    differs = next(i for i, token in enumerate(written) if token != 100 + i) + 1
    meets = max(i for i, token in enumerate(written) if token - 1 != written[i - 1]) + 1
    assert all(right[2:differs])
    assert not right[differs]
    assert all(right[meets + 2 :])


def test_a_passage_that_the_text_has_left_for_good_is_forgotten() -> None:
    expected = followed([*range(100, 130)], [*range(100, 110), *range(900, 930)])
    assert expected[-8:] == [None] * 8
