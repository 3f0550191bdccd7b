"""Merges that the tokens imply, against making every token by its merges."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np

from tokalign.tokenizer.bpe.validity import Merges
from tokalign.tokenizer.fingerprint import all_made, are_implied
from tokalign.tokenizer.spec import as_triples, every_triple

LETTERS = (b"a", b"b", b"c")


def random_merges(draw: Random) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Tokens, and one merge for each, of halves that come before it."""
    tokens, merges = list(LETTERS), list[tuple[int, int, int]]()
    for _ in range(40):
        left, right = draw.randrange(len(tokens)), draw.randrange(len(tokens))
        made = tokens[left] + tokens[right]
        if made not in tokens and len(made) < 7:
            merges.append((left, right, len(tokens)))
            tokens.append(made)
    return tokens, merges


def test_a_token_is_made_unless_a_merge_crosses_its_halves() -> None:
    draw, seen = Random(5), set[bool]()
    for _ in range(300):
        tokens, merges = random_merges(draw)
        rules = Merges.from_triples(merges)
        symbols = [[LETTERS.index(bytes([byte])) for byte in token] for token in tokens]
        made = all(rules.apply(symbols[i]).ids == [i] for _, _, i in merges)
        assert all_made(as_triples(merges)) == made
        seen.add(made)
    assert seen == {True, False}


def test_merges_that_are_implied_encode_as_all_ways_to_make_the_tokens() -> None:
    draw = Random(6)
    texts = [list(text) for size in range(1, 8) for text in product(range(3), repeat=size)]
    for _ in range(60):
        tokens, merges = random_merges(draw)
        literal = {token: i for i, token in enumerate(tokens)}
        every = every_triple([i for _, _, i in merges], tokens, literal)
        assert are_implied(tokens, every, frozenset())
        if are_implied(tokens, as_triples(merges), frozenset()):
            listed, all_ways = Merges.from_triples(merges), Merges.from_triples(every)
            for text in texts[:: draw.randint(5, 9)]:
                assert listed.apply(text).ids == all_ways.apply(text).ids


def test_merges_of_one_token_with_others_between_them_are_not_implied() -> None:
    tokens = [b"a", b"b", b"ab", b"aba", b"ba"]
    merges = np.array([(0, 1, 2), (2, 0, 3), (1, 0, 4), (0, 4, 3)], dtype=np.int64)
    assert not are_implied(tokens, merges, frozenset())
