"""Pieces are those of the library, and the cuts that are taken to be final stay."""

from __future__ import annotations

from typing import Any

import pytest
from canonical import assert_settled_pieces_stay
from hypothesis import example, given
from hypothesis import strategies as st
from polish import byte_strings
from small_families import BYTE_LEVEL, PIPELINES, isolated
from tokenizers import pre_tokenizers

from tokalign.errors import VocabularyError
from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.library import LibrarySplitter, giving_up
from tokalign.tokenizer.spec import byte_level

SEVERAL = st.text(st.sampled_from("aA'rRvelsx12 !/\n\u2003中カ\u0301ż.-²"), max_size=12)

WORDS = st.text(st.sampled_from("ax1 \nr"), min_size=60, max_size=90)


def split(pattern: Any, behavior: str = "Isolated", *, invert: bool = False) -> dict[str, Any]:
    kind = {"String": pattern[1:]} if pattern[0] == "=" else {"Regex": pattern}
    return {"type": "Split", "pattern": kind, "behavior": behavior, "invert": invert}


ODD = {
    "gaps": byte_level(r"[a-z]+'?|\d{1,2}"),
    "one group": byte_level(f"(?:{GPT2_PATTERN})"),
    "digits from the right": byte_level(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\P{N}+"),
    "looks back": byte_level(r"(?<=a)x+|\s+|\S"),
    "at word boundaries": byte_level(r"\b\w+\b|\W"),
    "at ends": byte_level(r"a+$|[a-z]+\Z|x\z|(?:1|12)+(?!\d)|."),
    "only after a line end": byte_level(r"^[a-z ]+|\S+|\s"),
    "looks back far": byte_level(r"(?<=a[a-z ]{5})r|(?<!x..)1+|[a-z]|\s+(?<=\n )|."),
    "signs before words": (
        split(r"\p{P}"),
        split(r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+|\p{L}+"),
        BYTE_LEVEL,
    ),
    "cut within threes": (isolated(r"\p{N}{1,3}"), split("=1"), BYTE_LEVEL),
    "cut within runs": (split(r"\s{2,}", "Contiguous"), split("= "), BYTE_LEVEL),
    "a set of sets": byte_level(r"[\p{L}&&[^\p{Han}]]+|[^\r\n\p{L}]?\p{Han}+|\s+|."),
    **{
        f"a character {behavior}": (split("=a", behavior), BYTE_LEVEL)
        for behavior in ("Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext")
    },
    "digits after bytes": (
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ),
}


LOOKING = ("looks back", "at word boundaries", "at ends", "looks back far")


@pytest.mark.parametrize("steps", [*PIPELINES.values(), *ODD.values()], ids=[*PIPELINES, *ODD])
@given(text=st.one_of(SEVERAL, st.text(max_size=8), WORDS))
@example(text="a1²3 456ż7")
@example(text="1234567 89")
@example(text="2134567 11")
@example(text="中カaa-aa--")
@example(text="/\r  \n")
@example(text="  a")
def test_pieces_are_the_library_s_and_settled_ones_stay(
    steps: tuple[dict[str, Any], ...], text: str
) -> None:
    splitter = LibrarySplitter(steps)
    theirs = splitter.pre_tokenizer.pre_tokenize_str(text)
    if any(step["type"] == "ByteLevel" for step in steps):
        assert list(map(len, splitter.split(text.encode()))) == [len(piece) for piece, _ in theirs]
    assert_settled_pieces_stay(splitter, text.encode())


@pytest.mark.parametrize("steps", PIPELINES.values(), ids=PIPELINES)
@given(data=byte_strings)
def test_broken_text_is_cut_without_loss(steps: tuple[dict[str, Any], ...], data: bytes) -> None:
    assert b"".join(LibrarySplitter(steps).split(data)) == data


@pytest.mark.parametrize("name", [*PIPELINES, *LOOKING])
def test_of_a_long_text_nearly_all_is_settled(name: str) -> None:
    steps = (PIPELINES | ODD)[name]
    data = "Zażółć gęślą jaźń, 12 razy. ".encode() * 40
    splitter = LibrarySplitter(steps)
    pieces = splitter.split(data)
    assert splitter.count_settled(data, pieces) > len(pieces) - (8 if name in PIPELINES else 80)


def test_pieces_that_lose_text_are_an_error() -> None:
    for step in (split(r"\s+", "Removed"), {"type": "Whitespace"}):
        with pytest.raises(VocabularyError, match="lost"):
            LibrarySplitter((step, BYTE_LEVEL)).split(b"a b")
    removed = (split(GPT2_PATTERN, "Removed", invert=True), BYTE_LEVEL)
    assert LibrarySplitter(removed).split(b"a b") == [b"a", b" b"]


def test_a_text_that_makes_the_library_panic_is_an_error() -> None:
    pre_tokenizers.ByteLevel()  # the library is loaded before the clock starts
    with pytest.raises(VocabularyError, match="gives up"):
        LibrarySplitter(byte_level(r"(?:\s+\s+)+x|.")).split(b" " * 60 + b"y")


def test_another_model_is_not_recommended_where_memory_is_at_an_end() -> None:
    with pytest.raises(MemoryError), giving_up():
        raise MemoryError
