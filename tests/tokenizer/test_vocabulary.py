"""Spellings of bytes: one law for those that spell bytes, and one for those that do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokalign.tokenizer.spelling import byte_alphabet, read_byte_level, spelled_in, write_byte_level


@given(st.lists(st.binary(max_size=5)))
def test_bytes_survive_their_spelling(tokens: list[bytes]) -> None:
    assert read_byte_level(write_byte_level(tokens)) == tuple(tokens)


@given(st.lists(st.text(max_size=3)))
def test_only_the_alphabet_spells_bytes(spellings: list[str]) -> None:
    read = read_byte_level(spellings)
    for spelling, token in zip(spellings, read, strict=True):
        assert (token is not None) == set(byte_alphabet()).issuperset(spelling)
        assert token is None or write_byte_level([token]) == [spelling]


class Searched(str):
    """A text that counts how often it is searched."""

    times = 0

    def __contains__(self, part: object) -> bool:
        self.times += 1
        return str(self).find(str(part)) >= 0


def test_a_long_text_is_searched_once_for_all_spellings_that_begin_alike() -> None:
    """Gemma has 6,000 `<unused…>`, for each of which a prompt was searched from end to end."""
    spellings = ["<eos>", "<|a|>", "<|b|>", "x", *(f"<unused{number}>" for number in range(6000))]
    text = Searched("a <|b|> x")
    assert spelled_in(text, spellings).findall(text) == ["<|b|>", "x"]
    assert text.times < 10
    assert spelled_in("<unused7>", spellings).findall("<unused7>") == ["<unused7>"]
