"""Packed counting equals a Counter over tuples, however the text is cut into chunks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.dictspec import word_ngrams as ngrams_module
from lab.dictspec.word_ngrams import WordNgrams, count_word_ngrams

Ngram = tuple[str, ...]

lines_of_words = st.lists(
    st.lists(st.sampled_from(["w", "domu", "i", "nie", "ma,"]), max_size=8).map(" ".join),
    max_size=8,
)


def count_plainly(lines: list[str]) -> Counter[Ngram]:
    return Counter(
        tuple(words[start : start + order])
        for words in map(str.split, lines)
        for order in (1, 2, 3)
        for start in range(len(words) - order + 1)
    )


def counts_of(counted: WordNgrams) -> dict[Ngram, int]:
    return dict(counted.most_frequent(1 << 30))


@given(lines_of_words, st.integers(1, 12))
def test_counts_equal_a_counter_whatever_the_chunks(lines: list[str], chunk: int) -> None:
    assert counts_of(count_word_ngrams(lines, chunk_words=chunk)) == count_plainly(lines)


@given(lines_of_words, st.integers(0, 20))
def test_the_most_frequent_come_first_and_are_the_first_of_any_more(
    lines: list[str], number: int
) -> None:
    counted = count_word_ngrams(lines)
    ranked = list(counted.most_frequent(1 << 30))
    assert [count for _, count in ranked] == sorted((c for _, c in ranked), reverse=True)
    assert list(counted.most_frequent(number)) == ranked[:number]


def test_no_ngram_crosses_the_end_of_a_line() -> None:
    assert counts_of(count_word_ngrams(["a b", "c"])) == {
        ("a",): 1,
        ("b",): 1,
        ("c",): 1,
        ("a", "b"): 1,
    }


def test_words_beyond_the_numbers_are_gaps_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ngrams_module, "_MAX_WORDS", 2)
    counted = count_word_ngrams(["a b c a b", "c d"])
    assert counted.unnumbered == 3
    assert counts_of(counted) == {("a",): 2, ("b",): 2, ("a", "b"): 2}


def test_a_word_that_is_too_long_is_left_out_and_no_ngram_crosses_it() -> None:
    counted = count_word_ngrams(["a " + "x" * 256 + " b", "a " + "y" * 257 + " b"])
    assert "x" * 256 in counted.words
    assert "y" * 257 not in counted.words
    assert counted.unnumbered == 1
    assert ("a", "b") not in counts_of(counted)
