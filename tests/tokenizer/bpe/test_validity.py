"""Pair validity against brute force: with the real tokenizers, and with merges in any order.

In real tokenizers a merge may have a lower rank than those that make its halves (49,597 of Llama
3's 280,147), but texts in which this matters are rare. Random tokenizers are full of them.
"""

from __future__ import annotations

from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from canonical import is_canonical_piece, ordinary_tokens
from hypothesis import given, settings
from polish import SENTENCES, texts
from small_tokenizers import random_merges

from tokalign.tokenizer.bpe.encoder import BytePairEncoding
from tokalign.tokenizer.bpe.validity import NEVER, Spine
from tokalign.tokenizer.tokenizer import Tokenizer

SEEDS = range(4)


def merged(bpe: BytePairEncoding[Any], left: int, right: int) -> list[int]:
    """Brute force: the bytes of both tokens as one piece, by the merges alone."""
    return bpe.merge(bpe.tokens[left] + bpe.tokens[right]).ids


def test_pair_validity_equals_brute_force(tokenizer: Tokenizer[Any]) -> None:
    bpe, draw = tokenizer.bpe, Random(20)
    tokens = ordinary_tokens(bpe, draw)
    for _ in range(6000):
        left, right = draw.choice(tokens), draw.choice(tokens)
        expected = merged(bpe, left, right) == [left, right]
        assert bpe.validity.may_follow(left, right) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_pair_validity_equals_brute_force_for_any_merges(seed: int) -> None:
    draw, outcomes = Random(seed), {True: 0, False: 0}
    for _ in range(60):
        bpe = random_merges(draw).bpe
        tokens = [i for i in range(len(bpe.tokens)) if bpe.validity.reachable(i)]
        for left, right in product(tokens, repeat=2):
            expected = merged(bpe, left, right) == [left, right]
            assert bpe.validity.may_follow(left, right) == expected
            outcomes[expected] += 1
    assert min(outcomes.values()) > 1000


def test_corollary_one_a_prefix_of_a_canonical_encoding_is_canonical(
    tokenizer: Tokenizer[Any],
) -> None:
    bpe = tokenizer.bpe
    for sentence in SENTENCES:
        for piece in bpe.splitter.split(sentence.encode()):
            ids = bpe.encode_piece(piece)
            for length in range(1, len(ids)):
                data = tokenizer.vocabulary.bytes_of(ids[:length])
                assert bpe.merge(data).ids == list(ids[:length])


@given(text=texts)
@settings(max_examples=200)
def test_corollary_two_neighbours_in_canonical_text_are_valid_pairs(
    tokenizer: Tokenizer[Any], text: str
) -> None:
    bpe = tokenizer.bpe
    for piece in bpe.splitter.split(text.encode()):
        ids = bpe.encode_piece(piece)
        assert is_canonical_piece(bpe, ids)
        assert all(bpe.validity.may_follow(a, b) for a, b in pairwise(ids))


@pytest.mark.slow
def test_corollary_two_a_sequence_is_canonical_iff_every_pair_is(
    tokenizer: Tokenizer[Any],
) -> None:
    bpe, draw, canonical = tokenizer.bpe, Random(5), 0
    tokens = ordinary_tokens(bpe, draw)
    for _ in range(4000):
        ids = tuple(draw.choices(tokens, k=draw.randint(1, 3)))
        expected = bpe.encode_piece(tokenizer.vocabulary.bytes_of(ids)) == ids
        assert is_canonical_piece(bpe, ids) == expected
        canonical += expected
    assert 400 < canonical < 3980  # both answers were tried


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_is_canonical_iff_every_pair_is_for_any_merges(seed: int) -> None:
    draw, outcomes = Random(100 + seed), {True: 0, False: 0}
    for _ in range(60):
        bpe = random_merges(draw).bpe
        tokens = [i for i in range(len(bpe.tokens)) if bpe.validity.reachable(i)]
        for _ in range(60):
            ids = tuple(draw.choices(tokens, k=draw.randint(3, 5)))
            canonical = bpe.encode_piece(b"".join([bpe.tokens[i] for i in ids])) == ids
            assert is_canonical_piece(bpe, ids) == canonical
            outcomes[canonical] += 1
    assert min(outcomes.values()) > 500


def test_the_worked_example_of_the_spines(bielik: Tokenizer[Any]) -> None:
    """`sz` may not follow `▁War`, because the merge of `ar` and `s` crosses; see `validity.py`."""
    bpe, ids = bielik.bpe, bielik.vocabulary.id_of

    def periods(spine: Spine[Any]) -> list[tuple[bytes, int, int]]:
        return [(bpe.tokens[token.id], token.entered, token.left) for token in spine]

    assert periods(bpe.validity.right_spine(ids[b" War"])) == [
        (b" War", 6770, NEVER),
        (b"ar", 34, 6770),
        (b"r", -1, 34),
    ]
    assert periods(bpe.validity.left_spine(ids[b"sz"])) == [
        (b"sz", 10875, NEVER),
        (b"s", -1, 10875),
    ]
    assert bpe.merges.rules[ids[b"ar"] << 32 | ids[b"s"]] >> 32 == 1829
    assert not bpe.validity.may_follow(ids[b" War"], ids[b"sz"])
    assert bpe.encode(b" Warszawa") == [ids[b" Wars"], ids[b"z"], ids[b"awa"]]
    assert bpe.validity.may_follow(ids[b" pr"], ids[b"acy"])
