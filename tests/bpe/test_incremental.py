"""Pieces equal the whole: incremental encoding, for every split and continuation."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, byte_strings

from tokalign.bpe.encoder import BytePairEncoding, IncrementalEncoder
from tokalign.bpe.pretokenizer import incomplete_tail
from tokalign.tokenizer.tokenizer import Tokenizer


@given(parts=st.lists(byte_strings, max_size=5))
@settings(max_examples=300)
@pytest.mark.slow
def test_pushing_parts_equals_encoding_the_whole(
    tokenizer: Tokenizer[Any], parts: list[bytes]
) -> None:
    encoder = IncrementalEncoder(tokenizer.bpe)
    for part in parts:
        before = encoder.ids[: encoder.settled]
        encoder.push(part)
        assert encoder.ids[: len(before)] == before
    assert encoder.text == b"".join(parts)
    assert encoder.ids == tokenizer.bpe.encode(encoder.text)


def test_the_worked_examples(bielik: Tokenizer[Any]) -> None:
    """That of `IncrementalEncoder`."""
    encoder = IncrementalEncoder(bielik.bpe)

    def tokens() -> list[bytes]:
        return [bielik.vocabulary.tokens[i] for i in encoder.ids]

    encoder.push(b" War")
    assert tokens() == [b" War"]
    encoder.push(b"szawa")
    assert tokens() == [b" Wars", b"z", b"awa"]


@pytest.mark.parametrize("broken", [b"", b"\xc5", b"\xe2\x82"])
def test_settled_ids_survive_every_continuation(tokenizer: Tokenizer[Any], broken: bytes) -> None:
    """Most of the continuations make the end of the text a part of a longer token."""
    bpe, draw, changed = tokenizer.bpe, Random(21), 0
    for sentence in SENTENCES:
        data = tokenizer.text_bytes(sentence)
        for cut in range(1, len(data)):
            text = data[:cut] + broken
            encoder = IncrementalEncoder(bpe)
            encoder.push(text)
            settled = encoder.ids[: encoder.settled]
            for more in continuations(bpe, text, draw):
                ids = bpe.encode(text + more)
                assert ids[: len(settled)] == settled
                changed += ids[: len(encoder.ids)] != encoder.ids
    assert changed > 300


def continuations(bpe: BytePairEncoding[Any], text: bytes, draw: Random) -> Iterator[bytes]:
    """What completes a short end of `text` to a token, alone and with more; and other bytes."""
    for size in range(min(len(text), 10)):
        first, last = bpe.order.extending(text[len(text) - size :])
        if first < last:
            rest = bpe.order.spelled[draw.randrange(first, last)][size:]
            yield rest
            yield rest + draw.choice(bpe.order.spelled)
    yield from (b" ", b"\n", b"a", b"1", draw.randbytes(3), draw.choice(bpe.order.spelled))


HARD = (" ", "\u2003", "\xa0", "\n", "\t", "0", "a", "A", "Ż", "中", "'", "r", ".", "/", "\u0301")


def test_white_space_that_is_split_or_cut_in_a_character(tokenizer: Tokenizer[Any]) -> None:
    """Half a space was taken for a character that ends a run of white space."""
    draw = Random(5)
    for _ in range(5000):
        text = "".join(draw.choices(HARD, k=draw.randint(1, 9))).encode()
        more = "".join(draw.choices(HARD, k=draw.randint(0, 5))).encode()
        split, cut = draw.randint(0, len(text)), draw.randint(0, len(text))
        encoder = IncrementalEncoder(tokenizer.bpe)
        encoder.push(text[:split])
        encoder.push(text[split:])
        assert encoder.ids == tokenizer.bpe.encode(text)
        encoder = IncrementalEncoder(tokenizer.bpe)
        encoder.push(text[:cut])
        settled = encoder.ids[: encoder.settled]
        encoder.push(more)
        assert encoder.ids == tokenizer.bpe.encode(text[:cut] + more)
        assert encoder.ids[: len(settled)] == settled


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
