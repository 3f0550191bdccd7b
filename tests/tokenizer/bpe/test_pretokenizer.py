"""Cutting text into words and added tokens: in no time, and final cuts stay."""

from __future__ import annotations

from itertools import accumulate, product
from random import Random

from canonical import assert_settled_pieces_stay
from hypothesis import example, given
from hypothesis import strategies as st

from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN, RegexSplitter
from tokalign.tokenizer.bpe.pretokenizer import (
    AddedTokenSplitter,
    WordSplitter,
    _AnyOf,
    has_inner_space,
)
from tokalign.tokenizer.library import as_read


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
