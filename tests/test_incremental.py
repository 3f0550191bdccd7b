"""Pieces equal the whole: incremental encoding, for every split, truncation and continuation."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from polish import SENTENCES, byte_strings

from tokalign.incremental import IncrementalEncoder
from tokalign.pieces import incomplete_tail
from tokalign.tokenizers import Tokenizer


@given(parts=st.lists(byte_strings, max_size=5))
@settings(max_examples=300, deadline=None)
def test_pushing_parts_equals_encoding_the_whole(
    tokenizer: Tokenizer[Any], parts: list[bytes]
) -> None:
    encoder = IncrementalEncoder(tokenizer.bpe)
    for part in parts:
        before = encoder.ids[: encoder.stable]
        encoder.push(part)
        assert encoder.ids[: len(before)] == before
    assert encoder.text == b"".join(parts)
    assert encoder.ids == tokenizer.bpe.encode(encoder.text)


def test_every_split_of_a_sentence_equals_the_whole(tokenizer: Tokenizer[Any]) -> None:
    for sentence in SENTENCES:
        data = sentence.encode()
        whole = tokenizer.bpe.encode(data)
        for cut in range(len(data) + 1):
            encoder = IncrementalEncoder(tokenizer.bpe)
            encoder.push(data[:cut])
            stable = encoder.ids[: encoder.stable]
            encoder.push(data[cut:])
            assert encoder.ids == whole
            assert whole[: len(stable)] == stable


@example(data=b"0000", more=b"def suma(a, b):\n    return a", cut=24)
@given(data=byte_strings, more=byte_strings, cut=st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_truncating_equals_never_having_pushed(
    tokenizer: Tokenizer[Any], data: bytes, more: bytes, cut: int
) -> None:
    encoder = IncrementalEncoder(tokenizer.bpe)
    encoder.push(data)
    encoder.push(more)
    encoder.truncate(cut)
    assert encoder.ids == tokenizer.bpe.encode((data + more)[:cut])
    encoder.push(more)
    assert encoder.ids == tokenizer.bpe.encode((data + more)[:cut] + more)


@given(data=byte_strings)
def test_an_incomplete_tail_is_the_beginning_of_a_character(data: bytes) -> None:
    tail = incomplete_tail(data)
    if tail:
        lead = data[len(data) - tail]
        needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        assert lead >= 0xC0
        assert tail < needed
    elif data:
        assert data[-1] < 0xC0 or data[-1] >= 0xF8


def test_half_a_character_waits_for_the_other_half() -> None:
    assert incomplete_tail(b"za") == 0
    assert incomplete_tail("zaż".encode()) == 0
    assert incomplete_tail("zaż".encode()[:-1]) == 1
    assert incomplete_tail("😀".encode()[:3]) == 3
