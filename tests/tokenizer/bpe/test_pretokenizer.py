"""Cutting text into pieces: the fast path agrees with the expression, final cuts stay."""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from random import Random

import pytest
from canonical import assert_settled_pieces_stay
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokalign.tokenizer.bpe.pretokenizer import (
    GPT2_PATTERN,
    KNOWN_PATTERNS,
    AddedTokenSplitter,
    RegexSplitter,
    WordSplitter,
    _AnyOf,
    as_bytes,
    as_text,
    has_inner_space,
    looks_back,
)
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


def test_a_million_spaces_are_cut_in_no_time() -> None:
    """The time was quadratic in their number: a model may write spaces without end."""
    spaces = b" " * 1_000_000
    assert WordSplitter().split(b"a" + spaces) == [b"a", spaces]
    assert WordSplitter().split(spaces + b"a b") == [spaces + b"a", b" b"]


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4), st.binary(max_size=9))
def test_the_end_of_a_text_that_may_become_an_added_token(added: list[bytes], text: bytes) -> None:
    ends = [text[at:] for at in range(len(text) + 1)]
    begins = [not end or any(t != end and t.startswith(end) for t in added) for end in ends]
    assert _AnyOf(added).end(text) == begins.index(True)


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


SPANNING = [b">" + b" " + b"</", b"a b", b"b a b", b"b  b"]


@given(text=st.text(st.sampled_from("ab ></"), max_size=14))
def test_words_are_joined_where_a_token_spans_them(text: str) -> None:
    """A cut stays exactly where no spanning token of the text lies across it."""
    data = text.encode()
    splitter, words = WordSplitter(SPANNING), WordSplitter()
    cuts = set(accumulate(map(len, words.split(data))))
    for token in SPANNING:
        for start in range(len(data)):
            if data.startswith(token, start):
                cuts -= set(range(start + 1, start + len(token)))
    assert set(accumulate(map(len, splitter.split(data)))) == cuts
    assert_settled_pieces_stay(splitter, data)


def test_many_words_are_joined_in_no_time() -> None:
    """Each of the 100,000 spans was compared with each cut: HTML in one line took minutes."""
    pieces = WordSplitter(SPANNING).split(b"a> </a c" * 100_000)
    assert pieces == [b"a> </a", *[b" ca> </a"] * 99_999, b" c"]


@given(text=st.text(st.sampled_from("\n\t<b>/ aż"), max_size=14))
@example(text="a\n\n\n\n\na")
@example(text="<b<b>a")
def test_added_tokens_are_cut_out_first_the_longest_of_the_leftmost(text: str) -> None:
    added = [b"\n" * size for size in (1, 2, 3)] + [b"\t", b"<b>", b"<b a>", b"  "]
    for rest in (RegexSplitter(GPT2_PATTERN, as_read), WordSplitter()):
        splitter = AddedTokenSplitter(added, rest)
        assert_settled_pieces_stay(splitter, text.encode())
        pieces = splitter.split(text.encode())
        assert not any(t in piece for t, piece in product(added, pieces) if piece not in added)


def test_a_line_end_waits_for_another_one() -> None:
    splitter = AddedTokenSplitter([b"\n", b"\n\n"], WordSplitter())
    for data, settled in ((b"a\n", 1), (b"a\n\n", 1), (b"a\n\nb", 2), (b"a\nb c", 3)):
        assert splitter.count_settled(data, splitter.split(data)) == settled


def test_a_token_with_a_space_at_its_beginning_spans_nothing() -> None:
    draw = Random(3)
    for _ in range(200):
        token = bytes(draw.choices(b"a ", k=draw.randint(1, 5)))
        assert has_inner_space(token) == (b"a " in token)
