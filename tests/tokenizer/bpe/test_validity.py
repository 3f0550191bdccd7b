"""Pair validity against brute force, for any merges; `test_laws_at_scale.py` has real tokenizers.

In real tokenizers a merge may have a lower rank than those that make its halves (49,597 of Llama
3's 280,147), but texts in which this matters are rare. Random tokenizers are full of them.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest
from canonical import is_canonical_piece
from hypothesis import given, settings
from polish import texts
from small_tokenizers import random_merges

from tokalign.tokenizer.bpe.validity import NEVER, Spine
from tokalign.tokenizer.tokenizer import Tokenizer

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_pair_validity_equals_brute_force(seed: int) -> None:
    draw, outcomes = Random(seed), Counter[bool]()
    for _ in range(60):
        bpe = random_merges(draw).bpe
        tokens = [i for i in range(len(bpe.tokens)) if bpe.validity.reachable(i)]
        for left, right in product(tokens, repeat=2):
            apart = bpe.merge(bpe.tokens[left] + bpe.tokens[right]).ids == [left, right]
            assert bpe.validity.may_follow(left, right) == apart
            outcomes[apart] += 1
    assert min(outcomes[True], outcomes[False]) > 1000


@given(text=texts)
@settings(max_examples=200)
def test_corollary_one_a_prefix_of_a_canonical_encoding_is_canonical(
    tokenizer: Tokenizer[Any], text: str
) -> None:
    bpe = tokenizer.bpe
    for piece in bpe.splitter.split(text.encode()):
        ids = bpe.encode_piece(piece)
        assert is_canonical_piece(bpe, ids)
        for length in range(1, len(ids)):
            data = tokenizer.vocabulary.bytes_of(ids[:length])
            assert bpe.merge(data).ids == list(ids[:length])


@pytest.mark.parametrize("seed", SEEDS)
def test_corollary_two_a_sequence_is_canonical_iff_every_pair_is(seed: int) -> None:
    draw, outcomes = Random(100 + seed), Counter[bool]()
    for _ in range(60):
        bpe = random_merges(draw).bpe
        tokens = [i for i in range(len(bpe.tokens)) if bpe.validity.reachable(i)]
        for _ in range(60):
            ids = tuple(draw.choices(tokens, k=draw.randint(3, 5)))
            canonical = bpe.encode_piece(b"".join([bpe.tokens[i] for i in ids])) == ids
            assert is_canonical_piece(bpe, ids) == canonical
            outcomes[canonical] += 1
    assert min(outcomes[True], outcomes[False]) > 500


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
