"""Cutting text into pieces: the fast path agrees with the regular expression."""

from __future__ import annotations

from typing import Any

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from small_tokenizers import GPT4O_PATTERN
from tokenizers import Regex, pre_tokenizers

from tokalign.bpe.pretokenizer import RegexSplitter, as_bytes, as_text
from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.pipeline import GPT2_PATTERN
from tokalign.tokenizer.tokenizer import Tokenizer

mostly_words = st.text(st.sampled_from("aAłŻé 'sºĀ" + "1.\n\xa0\x1c\u0301жß"), max_size=12)


def by_expression(pattern: str, text: str) -> list[bytes]:
    found = regex.compile(f"{pattern}|.", regex.DOTALL).finditer(text)
    return [as_bytes(match.group()) for match in found]


@pytest.fixture(scope="module")
def splitters(llama: Tokenizer[Any], qwen: Tokenizer[Any]) -> list[RegexSplitter]:
    patterns = GPT2_PATTERN, QWEN35_PATTERN
    found = [llama.splitter, qwen.splitter, *map(RegexSplitter, patterns)]
    return [one for one in found if isinstance(one, RegexSplitter)]


@given(text=st.one_of(mostly_words, st.text(st.sampled_from("aŁb  "), max_size=9), st.text()))
def test_words_are_cut_as_the_expression_cuts_them(
    splitters: list[RegexSplitter], text: str
) -> None:
    for splitter in splitters:
        data = as_bytes(as_text(text.encode("utf-8", "surrogatepass")))
        assert splitter.split(data) == by_expression(splitter.pattern, as_text(data))


@given(pieces=st.lists(mostly_words.filter(bool).map(str.encode), min_size=1, max_size=5))
def test_only_white_space_after_white_space_unsettles_more_than_the_last_piece(
    splitters: list[RegexSplitter], pieces: list[bytes]
) -> None:
    count = len(pieces) - 1
    while (
        count > 0 and as_text(pieces[count]).isspace() and as_text(pieces[count - 1])[-1].isspace()
    ):
        count -= 1
    assert splitters[0].settled([*pieces, b"more"], len(pieces)) == count


QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Qwen3.5: its words have marks."""

UNKNOWN = [r"\p{L}+", r"[a-z]+'?|\d{1,2}", rf"(?:{GPT2_PATTERN})"]
"""Expressions that published tokenizers do not have; two leave gaps."""


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, GPT4O_PATTERN, QWEN35_PATTERN, *UNKNOWN])
@given(text=st.one_of(mostly_words, st.text(st.sampled_from("aA'rRvelsx1 !中\u0301"), max_size=12)))
@example(text="中AAAa")
@example(text="!\u0301A中Aa")
def test_settled_pieces_survive_every_continuation(pattern: str, text: str) -> None:
    """`'r` are two pieces for GPT-2 until an `e` follows."""
    splitter = RegexSplitter(pattern)
    assert splitter.is_known != (pattern in UNKNOWN)
    whole = splitter.split(text.encode())
    assert b"".join(whole) == text.encode()
    for cut in range(1, len(text)):
        pieces = splitter.split(text[:cut].encode())
        settled = splitter.settled(pieces, len(pieces))
        assert pieces[:settled] == whole[:settled]
        assert splitter.split(b"".join(whole[settled:])) == whole[settled:]
        if splitter.only_grows(pieces[-1]) and settled == len(pieces) - 1:
            assert whole[settled].startswith(pieces[-1])


@pytest.mark.parametrize("pattern", UNKNOWN)
@given(text=mostly_words)
def test_gaps_between_matches_are_pieces_as_in_the_library(pattern: str, text: str) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    theirs = [piece for piece, _ in split.pre_tokenize_str(text)]
    assert [piece.decode() for piece in RegexSplitter(pattern).split(text.encode())] == theirs


@pytest.mark.slow
def test_an_expression_that_backtracks_for_ever_is_stopped() -> None:
    with pytest.raises(VocabularyError, match=r"takes more than 2\.0 s for 61 characters"):
        RegexSplitter("(?:a|aa)+b").split(b"a" * 60 + b"c")
