"""The canonical encoder on any bytes, with byte fallback and with `ignore_merges`."""

from __future__ import annotations

from typing import Any

import pytest
from canonical import is_canonical_piece
from hypothesis import given, settings
from polish import byte_strings

from tokalign.tokenizer.tokenizer import Tokenizer


@given(data=byte_strings)
@settings(max_examples=200)
@pytest.mark.slow
def test_any_bytes_are_encoded_and_come_back(tokenizer: Tokenizer[Any], data: bytes) -> None:
    assert tokenizer.vocabulary.bytes_of(tokenizer.bpe.encode(data)) == data


def test_the_worked_example_of_encoding(bielik: Tokenizer[Any]) -> None:
    tokens = bielik.vocabulary.tokens
    ids = bielik.bpe.encode(b" Ala ma kota")
    assert [tokens[i] for i in ids] == [b" Al", b"a", b" ma", b" k", b"ota"]


def test_byte_fallback_that_spells_a_known_character_is_not_canonical(
    bielik: Tokenizer[Any],
) -> None:
    spelled = [
        i for byte in "ą".encode() for i in bielik.spec.fallback if bielik.spec.tokens[i][0] == byte
    ]
    assert not is_canonical_piece(bielik.bpe, spelled)
    unknown = bielik.bpe.encode("𐍈".encode())
    assert len(unknown) == 4
    assert is_canonical_piece(bielik.bpe, unknown)


def test_with_ignore_merges_a_piece_that_is_a_token_stays_whole(llama: Tokenizer[Any]) -> None:
    bpe, tokens = llama.bpe, llama.spec.tokens
    unreachable = (i for i in bpe.order.ids if not bpe.validity.reachable(i))
    for _ in range(50):
        token = next(unreachable)
        assert bpe.encode_piece(tokens[token]) == (token,)
        assert is_canonical_piece(bpe, [token])
