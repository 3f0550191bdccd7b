"""The theory of `docs/lossless.md` against brute force, with the real tokenizers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from polish import SENTENCES, byte_strings, texts

from tokalign.bpe.encoder import BytePairEncoding
from tokalign.tokenizer.tokenizer import Tokenizer


def ordinary(tokenizer: Tokenizer[Any]) -> list[int]:
    """Tokens that the merges make from their own bytes."""
    bpe, vocabulary = tokenizer.bpe, tokenizer.vocabulary
    return [
        i
        for i, token in enumerate(vocabulary.tokens)
        if token and i not in vocabulary.fallback and bpe.reachable(i)
    ]


def merged(bpe: BytePairEncoding, left: int, right: int) -> list[int]:
    """Brute force: the two tokens' bytes as one piece, by the merges alone."""
    return bpe.merge(bpe.base_symbols(bpe.tokens[left] + bpe.tokens[right])).ids


def test_pair_validity_equals_brute_force(tokenizer: Tokenizer[Any]) -> None:
    tokens, bpe, draw = ordinary(tokenizer), tokenizer.bpe, random.Random(20)
    for _ in range(6000):
        left, right = draw.choice(tokens), draw.choice(tokens)
        assert bpe.may_follow(left, right) == (merged(bpe, left, right) == [left, right])


def test_corollary_one_a_prefix_of_a_canonical_encoding_is_canonical(
    tokenizer: Tokenizer[Any],
) -> None:
    bpe = tokenizer.bpe
    for sentence in SENTENCES:
        for piece in bpe.splitter.split(sentence.encode()):
            ids = bpe.encode_piece(piece)
            for length in range(1, len(ids)):
                data = tokenizer.vocabulary.bytes_of(ids[:length])
                assert bpe.merge(bpe.base_symbols(data)).ids == list(ids[:length])


@given(text=texts)
@settings(max_examples=200, deadline=None)
def test_corollary_two_neighbours_in_canonical_text_are_valid_pairs(
    tokenizer: Tokenizer[Any], text: str
) -> None:
    bpe = tokenizer.bpe
    for piece in bpe.splitter.split(text.encode()):
        ids = bpe.encode_piece(piece)
        assert bpe.is_canonical_piece(ids)
        assert all(bpe.may_follow(a, b) for a, b in pairwise(ids))


def test_corollary_two_a_sequence_is_canonical_iff_every_pair_is(
    tokenizer: Tokenizer[Any],
) -> None:
    tokens, bpe, draw = ordinary(tokenizer), tokenizer.bpe, random.Random(5)
    canonical = 0
    for _ in range(4000):
        ids = tuple(draw.choices(tokens, k=draw.randint(1, 3)))
        data = tokenizer.vocabulary.bytes_of(ids)
        expected = bpe.encode_piece(data) == ids
        assert bpe.is_canonical_piece(ids) == expected
        canonical += expected
    assert 400 < canonical < 3980  # both answers were tried


@given(data=byte_strings)
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_encoded_and_come_back(tokenizer: Tokenizer[Any], data: bytes) -> None:
    assert tokenizer.vocabulary.bytes_of(tokenizer.bpe.encode(data)) == data


def test_byte_fallback_that_spells_a_known_character_is_not_canonical(
    bielik: Tokenizer[Any],
) -> None:
    spelled = [
        i for byte in "ą".encode() for i in bielik.spec.fallback if bielik.spec.tokens[i][0] == byte
    ]
    assert not bielik.bpe.is_canonical_piece(spelled)
    unknown = bielik.bpe.encode("𐍈".encode())
    assert len(unknown) == 4
    assert bielik.bpe.is_canonical_piece(unknown)


def test_with_ignore_merges_a_piece_that_is_a_token_stays_whole(llama: Tokenizer[Any]) -> None:
    bpe = llama.bpe
    unreachable = [i for i, t in enumerate(llama.spec.tokens) if t and not bpe.reachable(i)]
    for token in unreachable[:50]:
        assert bpe.encode_piece(llama.spec.tokens[token]) == (token,)
        assert bpe.is_canonical_piece([token])
