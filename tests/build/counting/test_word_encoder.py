"""Encoding in batches equals encoding one by one, whatever was met before."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, texts
from small_tokenizers import random_merges

from tokalign.bpe.pretokenizer import WordSplitter
from tokalign.build.counting import word_encoder
from tokalign.build.counting.batch_bpe import BatchBpe
from tokalign.build.counting.hash_index import ABSENT, HashIndex
from tokalign.build.counting.windows import IdSpace
from tokalign.build.counting.word_encoder import WordEncoder, words_stand_alone
from tokalign.tokenizer.library import LibrarySplitter
from tokalign.tokenizer.spec import byte_level
from tokalign.tokenizer.tokenizer import Tokenizer

SPACE = IdSpace(1 << 19)

lines = st.lists(texts.map(lambda text: text.replace("\n", " ")), max_size=6)


@cache
def encoder_of(tokenizer: Tokenizer[Any], max_words: int = 1 << 20) -> WordEncoder:
    """One encoder for all examples of a test: what it met before must not matter."""
    return WordEncoder(tokenizer, SPACE, max_words=max_words)


def one_by_one(tokenizer: Tokenizer[Any], shard: list[str]) -> list[int]:
    return [i for line in shard for i in (*tokenizer.encode(line), SPACE.gap)]


@given(shard=lines, max_words=st.sampled_from([5, 1 << 20]))
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_a_shard_is_its_lines_encoded_whatever_came_before(
    tokenizer: Tokenizer[Any], shard: list[str], max_words: int
) -> None:
    encoder = encoder_of(tokenizer, max_words=max_words)
    assert encoder.encode(shard).tolist() == one_by_one(tokenizer, shard)


def test_words_too_long_to_be_kept_are_encoded_all_the_same(tokenizer: Tokenizer[Any]) -> None:
    encoder = encoder_of(tokenizer)
    shard = ["krótko " + "https://przyklad.pl/" + "bardzo-długi-odnośnik" * 9 + " i znów krótko"]
    for _ in range(2):
        assert encoder.encode(shard).tolist() == one_by_one(tokenizer, shard)


def test_words_with_one_hash_are_told_apart(
    bielik: Tokenizer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_collide(_units: Any, starts: Any, _lengths: Any) -> Any:
        return np.full(len(starts), 7, dtype=np.uint64)

    monkeypatch.setattr(word_encoder, "_hash", all_collide)
    encoder = WordEncoder(bielik, SPACE)
    shard = [sentence.replace("\n", " ") for sentence in SENTENCES]
    for _ in range(2):
        assert encoder.encode(shard).tolist() == one_by_one(bielik, shard)


def test_which_tokenizers_can_encode_word_by_word(tokenizer: Tokenizer[Any]) -> None:
    assert words_stand_alone(tokenizer.splitter)
    assert words_stand_alone(WordSplitter())
    for pattern in (r"\p{L}+(?: \p{L}+)*", r"(?<=[a-ż]) \w+|\w+"):
        assert not words_stand_alone(LibrarySplitter(byte_level(pattern)))


@given(seed=st.integers(0, 1 << 32), texts=st.lists(st.text("abc", min_size=1, max_size=12)))
@settings(max_examples=200)
def test_merging_in_rounds_equals_merging_piece_by_piece(seed: int, texts: list[str]) -> None:
    tokenizer = random_merges(Random(seed))
    known = {token.decode() for token in tokenizer.spec.tokens}
    pieces = [text for text in texts if set(text) <= known]
    ids, lengths = BatchBpe(tokenizer).encode(pieces)
    expected = [tokenizer.bpe.encode_piece(piece.encode()) for piece in pieces]
    assert ids.tolist() == [i for piece in expected for i in piece]
    assert lengths.tolist() == [len(piece) for piece in expected]


@given(st.lists(st.integers(0, (1 << 64) - 1), unique=True, max_size=3000), st.integers(0, 9))
@settings(max_examples=50)
def test_a_hash_index_is_a_dictionary(hashes: list[int], high_bits: int) -> None:
    """Also where all hashes want the same few slots."""
    hashes = list(dict.fromkeys(h >> high_bits * 7 for h in hashes))
    half = len(hashes) // 2
    index, expected = HashIndex(), {h: i for i, h in enumerate(hashes[:half])}
    index.add(np.array(hashes[:half], dtype=np.uint64))
    found = index.find(np.array(hashes, dtype=np.uint64))
    assert found.tolist() == [expected.get(h, ABSENT) for h in hashes]
    index.add(np.array(hashes[half:], dtype=np.uint64))
    assert index.find(np.array(hashes, dtype=np.uint64)).tolist() == list(range(len(hashes)))
