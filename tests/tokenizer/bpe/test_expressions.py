"""Cutting text by expressions: the fast path agrees with the library, final cuts stay."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from canonical import assert_settled_pieces_stay
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokalign.tokenizer.bpe.expressions import KNOWN_PATTERNS, RegexSplitter, looks_back
from tokalign.tokenizer.bpe.pretokenizer import as_bytes, as_text
from tokalign.tokenizer.library import LibrarySplitter, as_read
from tokalign.tokenizer.spec import byte_level

mostly_words = st.text(st.sampled_from("aAłŻé 'sºĀ" + "1.\n\xa0\x1c\u0301жß"), max_size=12)
KNOWN = sorted(KNOWN_PATTERNS)
NEW = "\u0558\u088f\u1acf\ua7ce\U00010940\U00011de0\U00016ea0\U000323b0\U00013460\U0001cf62"
HARD = st.text(st.sampled_from("aA'rRvelsx1 !/\n\u2003中\u0301\xa0\t0Ż."), max_size=12)


@given(text=st.one_of(mostly_words, st.text(st.sampled_from("aŁb  "), max_size=9), st.text()))
def test_words_are_cut_as_the_library_cuts_them(text: str) -> None:
    data = as_bytes(as_text(text.encode("utf-8", "surrogatepass")))
    for pattern in KNOWN:
        assert RegexSplitter(pattern, as_read).split(data) == LibrarySplitter(
            byte_level(pattern)
        ).split(data)


@pytest.mark.parametrize("pattern", KNOWN)
def test_characters_of_new_versions_of_unicode_are_cut_as_the_library_cuts_them(
    pattern: str,
) -> None:
    """`regex` takes some for letters that Oniguruma does not know, or the reverse."""
    ours, library = RegexSplitter(pattern, as_read), LibrarySplitter(byte_level(pattern))
    for text in (f"a{c}b'{c} 1{c}{c}\n{c}x" for c in NEW):
        assert ours.split(text.encode()) == library.split(text.encode())
        assert_settled_pieces_stay(ours, text.encode())
        assert_settled_pieces_stay(library, text.encode())


@pytest.mark.parametrize("pattern", KNOWN)
@settings(max_examples=400)
@given(text=st.one_of(mostly_words, HARD))
@example(text="中AAAa")
@example(text="!\u0301A中Aa")
def test_settled_pieces_survive_every_continuation(pattern: str, text: str) -> None:
    """`'r` are two pieces for GPT-2 until an `e` follows."""
    assert_settled_pieces_stay(RegexSplitter(pattern, as_read), text.encode())


@pytest.mark.parametrize("pattern", KNOWN)
@pytest.mark.parametrize("unit", ["a", "Ł", "中", "=", " ", "\n", "0", "a\u0301", "\u0301"])
@pytest.mark.parametrize("before", ["", "a ", "1. "])
def test_a_run_that_is_never_cut_costs_little_after_every_token(
    pattern: str, unit: str, before: str
) -> None:
    """4,000 ideographs took GPT-4o's expression minutes, after every token of them, and 24,000
    signs after a letter 4 s."""
    text = (before + unit * 4000).encode()
    splitter = RegexSplitter(pattern, as_read)
    pieces = splitter.split(text)
    for _ in range(20):
        assert splitter.count_settled(text, pieces) >= len(pieces) - 2


@given(text=st.text(st.sampled_from("aAłŁb "), max_size=9), at=st.integers(1, 14), more=HARD)
@example(text="ab cd", at=2, more="'s")
@example(text="ab cd", at=5, more="'s")
def test_a_plain_word_stays_the_piece_whatever_follows_the_text(
    text: str, at: int, more: str
) -> None:
    data, after = text.encode(), more.encode()
    at = min(at, len(data))
    for pattern in KNOWN:
        splitter = RegexSplitter(pattern, as_read)
        if at and (word := splitter.word_around(data, at)):
            ends = list(accumulate(map(len, splitter.split(data + after)), initial=0))
            begin, end = next(pair for pair in pairwise(ends) if pair[1] >= at)
            assert begin == word[0]
            assert end == word[1] or (end > word[1] == len(data) and after)


def test_of_plain_text_only_the_last_word_is_open() -> None:
    for pattern in KNOWN:
        splitter = RegexSplitter(pattern, as_read)
        data = b"ala ma kota, a kot 12 psy"
        pieces = splitter.split(data)
        assert splitter.count_settled(data, pieces) == len(pieces) - 1


def test_which_expressions_look_back() -> None:
    assert not any(map(looks_back, (*KNOWN, r"[!#$%^]+|\$|\^a", r"[^$]", r"a(?=b)|(?!\S)b", "a$")))
    assert all(map(looks_back, (r"(?<=a)b", r"\bkot", "^a", r"\Aa", r"a|(?<!b)c")))
