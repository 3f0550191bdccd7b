"""Spellings of bytes: one law for those that spell bytes, and one for those that do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokalign.tokenizer.spelling import byte_alphabet, read_byte_level, write_byte_level


@given(st.lists(st.binary(max_size=5)))
def test_bytes_survive_their_spelling(tokens: list[bytes]) -> None:
    assert read_byte_level(write_byte_level(tokens)) == tuple(tokens)


@given(st.lists(st.text(max_size=3)))
def test_only_the_alphabet_spells_bytes(spellings: list[str]) -> None:
    read = read_byte_level(spellings)
    for spelling, token in zip(spellings, read, strict=True):
        assert (token is not None) == set(byte_alphabet()).issuperset(spelling)
        assert token is None or write_byte_level([token]) == [spelling]
