"""Cutting text into pieces: the fast path agrees with the regular expression."""

from __future__ import annotations

from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from tokalign.bpe.pretokenizer import RegexSplitter, as_bytes, as_text
from tokalign.tokenizer.formats.tokenizer_json import GPT2_PATTERN
from tokalign.tokenizer.tokenizer import Tokenizer

mostly_words = st.text(st.sampled_from("aAłŻé 'sºĀ" + "1.\n\xa0\x1c\u0301жß"), max_size=12)


def by_expression(pattern: str, text: str) -> list[bytes]:
    found = regex.compile(f"{pattern}|.", regex.DOTALL).finditer(text)
    return [as_bytes(match.group()) for match in found]


@pytest.fixture(scope="module")
def splitters(llama: Tokenizer[Any], qwen: Tokenizer[Any]) -> list[RegexSplitter]:
    found = [llama.splitter, qwen.splitter, RegexSplitter(GPT2_PATTERN)]
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
