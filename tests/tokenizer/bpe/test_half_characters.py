"""A boundary within a character, and text that ends within one, against brute force."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from small_tokenizers import of_merges

from tokalign.tokenizer.bpe.absorption import Absorption
from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.spec import byte_level

CHARACTERS = ("ż", "ź", "„", "a", ".", " ")
PAIRS = (
    *((b"a", b"\xc5"), (b"\xc5", b"\xbc"), (b"a", "ż".encode()), (b"\xe2", b"\x80")),
    *((b".", b"\xe2"), (b" ", b"a"), (b"\xc5\xbc", b"a")),
)
TEXTS = ["".join(one).encode() for n in (1, 2) for one in product(CHARACTERS, repeat=n)]
ENDS = ["".join(one).encode() for n in (0, 1) for one in product(CHARACTERS, repeat=n)]


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, None])
def test_what_half_a_character_says_is_what_every_text_with_it_says(pattern: str | None) -> None:
    how = {"by_characters": False, "pre_tokenizer": byte_level(pattern)}
    bpe = of_merges(bytes(range(256)), PAIRS, **how).bpe
    absorption, outcomes = Absorption(bpe), Counter[tuple[bool, bool]]()
    kept: dict[tuple[bytes, bytes], bool] = {}  # whether any text keeps the boundary
    for text in TEXTS:
        for end in ENDS:
            whole = text + end
            ids = bpe.encode(whole)
            ends, at = set(), 0
            for token in ids:
                at += len(bpe.tokens[token])
                ends.add(at)
            for cut in range(1, min(len(text), len(whole) - 1) + 1):
                left = whole[:cut]
                for size in range(1, min(3, len(whole) - cut) + 1):
                    key = left, whole[cut : cut + size]
                    count = len(bpe.encode(left))
                    stays = ids[:count] == bpe.encode(left)
                    kept[key] = kept.get(key, False) or stays
    for (left, data), stays in kept.items():
        last = bpe.encode(left)[-1]
        absorbed = absorption.absorbs(left, last, data)
        outcomes[absorbed, stays] += 1
        assert not (absorbed and stays), (left, data)
    assert outcomes[True, False] > 20
    assert outcomes[False, True] > 100
