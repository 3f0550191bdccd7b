"""Merging symbols: the order of the merges, and two algorithms that agree."""

from __future__ import annotations

from random import Random

import pytest
from small_tokenizers import of_merges, random_merges


def test_a_merge_that_waits_for_its_halves_comes_late() -> None:
    """`abc` has a low rank, but its half `ab` is made after `cd`: by then no `c` is left."""
    tokenizer = of_merges(b"abcd", [(b"ab", b"c"), (b"c", b"d"), (b"a", b"b")])
    ids, bpe = tokenizer.vocabulary.id_of, tokenizer.bpe
    assert bpe.encode(b"abcd") == [ids[b"ab"], ids[b"cd"]]
    assert bpe.validity.may_follow(ids[b"ab"], ids[b"cd"])
    assert not bpe.validity.may_follow(ids[b"abc"], ids[b"d"])


@pytest.mark.parametrize("seed", range(4))
def test_searching_all_pairs_merges_as_the_queue_does(seed: int) -> None:
    """Short pieces take one algorithm, long ones the other: all that they return is the same."""
    draw = Random(200 + seed)
    for _ in range(60):
        bpe = random_merges(draw).bpe
        symbols = [i for i, token in enumerate(bpe.tokens) if len(token) == 1]
        for _ in range(60):
            ids = draw.choices(symbols, k=draw.randint(0, 24))
            assert bpe.merges._apply_short(ids) == bpe.merges._apply_long(ids)
