"""The laws of `docs/alignment.md` against the `tokenizers` library, with the real tokenizers.

Per tokenizer 100,000 pairs of tokens and a million tokens of running text in the long lane, and a
twentieth of both in every run. Pairs are drawn in three ways, so that both answers are frequent: at
random, as they stand in text, and where a token or two neighbours are cut elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard
from canonical import is_canonical_piece
from places import ROOT, shared_folder

from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spelling import byte_alphabet
from tokalign.tokenizer.tokenizer import Tokenizer

PAIRS_PER_PART = 5_000
TOKENS_PER_PART = 50_000

Encode = Callable[[bytes], tuple[int, ...] | None]


@pytest.fixture(scope="module", params=["bielik", "llama", "qwen", "polish_spm"])
def subject(request: pytest.FixtureRequest) -> Tokenizer[Any]:
    found: Tokenizer[Any] = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def polish_spm(shared_data: Path) -> Tokenizer[Any]:
    return read_tokenizer(shared_data / "tokenizers" / "polish-spm-32k")


@pytest.fixture(scope="module", params=[1, pytest.param(20, marks=pytest.mark.long)])
def parts(request: pytest.FixtureRequest) -> int:
    """How much is drawn and read: twenty parts are what docs/alignment.md speaks of."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def pieces(subject: Tokenizer[Any], parts: int) -> Counter[bytes]:
    """The different pieces of a text, with how often they occur."""
    found: Counter[bytes] = Counter()
    lengths: dict[bytes, int] = {}
    tokens = 0
    for line in lines():
        for piece in subject.splitter.split(b" " + line.encode()):
            if piece not in lengths:
                lengths[piece] = len(subject.bpe.encode_piece(piece))
            tokens += lengths[piece]
            found[piece] += 1
        if tokens >= parts * TOKENS_PER_PART:
            return found
    raise AssertionError(f"only {tokens} tokens of text")


def lines() -> Iterator[str]:
    """Running text: the shared corpus; without it, the bundled one, its words glued together."""
    shared = shared_folder()
    if shared is not None:
        path = shared / "corpus" / "train" / "wikisource_pages.txt.zst"
        with zstandard.open(path, "rt", encoding="utf-8") as text:
            yield from (line.rstrip("\n") for line in text)
        return
    bundled = (ROOT / "corpora" / "pl-mini.txt").read_text("utf-8")
    yield from bundled.splitlines()
    words, draw = bundled.split(), Random(6)
    while True:
        parts = (draw.choice(words)[: draw.randint(1, 9)] for _ in range(40))
        yield "".join(part + draw.choice(("", " ")) for part in parts)


def library(tokenizer: Tokenizer[Any]) -> Encode:
    """The `tokenizers` library's encoding of one piece; None for bytes that are no text to it."""
    model = tokenizer._library.model
    by_characters, alphabet = tokenizer.spec.by_characters, byte_alphabet()

    def encode(piece: bytes) -> tuple[int, ...] | None:
        if not by_characters:
            text = "".join([alphabet[byte] for byte in piece])
        else:
            try:
                text = piece.decode().replace(" ", "▁")
            except UnicodeDecodeError:
                return None
        return tuple(token.id for token in model.tokenize(text))

    return encode


@pytest.mark.slow
def test_a_pair_is_canonical_iff_the_library_leaves_it(
    subject: Tokenizer[Any], pieces: Counter[bytes], parts: int
) -> None:
    bpe, encode, outcomes = subject.bpe, library(subject), Counter[bool]()
    for left, right in pairs(subject, pieces, count := parts * PAIRS_PER_PART):
        encoded = encode(bpe.tokens[left] + bpe.tokens[right])
        if encoded is not None:
            expected = encoded == (left, right)
            assert is_canonical_piece(bpe, (left, right)) == expected
            outcomes[expected] += 1
    assert outcomes.total() >= count
    assert min(outcomes[True], outcomes[False]) > count / 5, outcomes


def pairs(subject: Tokenizer[Any], pieces: Counter[bytes], count: int) -> Iterator[tuple[int, int]]:
    """A quarter at random, a quarter neighbours in text, half cut elsewhere."""
    bpe, draw = subject.bpe, Random(17)
    tokens = [i for i in bpe.order.ids if bpe.validity.reachable(i)]
    for _ in range(count // 4 + 1000):
        yield draw.choice(tokens), draw.choice(tokens)
    words = [ids for piece in pieces if len(ids := bpe.encode_piece(piece)) > 1]
    neighbours = [pair for ids in words for pair in pairwise(ids)]
    for _ in range(count // 4):
        yield draw.choice(neighbours)
    for _ in range(count // 2):
        left, right = draw.choice(neighbours)
        text = bpe.tokens[left] + bpe.tokens[right] if draw.random() < 0.5 else bpe.tokens[left]
        cut = draw.randint(1, max(1, len(text) - 1))
        ends, begins = bpe.encode_piece(text[:cut]), bpe.encode_piece(text[cut:] or text)
        yield ends[-1], begins[0]


@pytest.mark.slow
def test_a_million_tokens_of_text_are_canonical_and_what_is_cut_elsewhere_is_not(
    subject: Tokenizer[Any], pieces: Counter[bytes], parts: int
) -> None:
    """Every different piece: our encoding, the library's, and the pairs of both agree."""
    bpe, encode, draw = subject.bpe, library(subject), Random(23)
    tokens, refused = 0, 0
    for piece, count in pieces.items():
        ids = bpe.encode_piece(piece)
        assert ids == encode(piece)
        assert is_canonical_piece(bpe, ids)
        tokens += count * len(ids)
        cut = draw.randint(1, len(piece))
        other = bpe.encode_piece(piece[:cut]) + (
            bpe.encode_piece(piece[cut:]) if piece[cut:] else ()
        )
        assert is_canonical_piece(bpe, other) == (other == ids)
        refused += other != ids
    assert tokens >= parts * TOKENS_PER_PART
    assert refused > len(pieces) / 5
