"""Encoding in batches equals encoding one by one, whatever was met before; lists of words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import texts

from tokalign.build.counting import word_shards
from tokalign.build.counting.runs import read_run
from tokalign.build.counting.windows import IdSpace, sort_windows
from tokalign.build.counting.word_encoder import WordEncoder, words_stand_alone
from tokalign.build.counting.word_shards import find_words, number_words, write_words
from tokalign.build.counting.workers import workers
from tokalign.tokenizer.bpe.pretokenizer import WordSplitter
from tokalign.tokenizer.library import LibrarySplitter
from tokalign.tokenizer.spec import byte_level
from tokalign.tokenizer.tokenizer import Tokenizer


@cache
def encoder_of(tokenizer: Tokenizer[Any], max_words: int = 1 << 20) -> WordEncoder:
    """One encoder for all examples of a test: what it met before must not matter."""
    return WordEncoder(tokenizer, max_words)


def assert_encoded(encoder: WordEncoder, tokenizer: Tokenizer[Any], shard: list[str]) -> None:
    """Each text as it is encoded alone, and a gap after it."""
    one_by_one = [i for text in shard for i in (*tokenizer.encode(text), encoder.space.gap)]
    assert encoder.encode(shard).tolist() == one_by_one


@given(shard=st.lists(texts, max_size=6), max_words=st.sampled_from([5, 1 << 20]))
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_a_shard_is_its_texts_encoded_whatever_came_before(
    tokenizer: Tokenizer[Any], shard: list[str], max_words: int
) -> None:
    assert_encoded(encoder_of(tokenizer, max_words=max_words), tokenizer, shard)


def test_words_too_long_to_be_kept_are_encoded_all_the_same(tokenizer: Tokenizer[Any]) -> None:
    shard = ["krótko " + "https://przyklad.pl/" + "bardzo-długi-odnośnik" * 9 + " i znów krótko"]
    for _ in range(2):
        assert_encoded(encoder_of(tokenizer), tokenizer, shard)


def test_which_tokenizers_can_encode_word_by_word(tokenizer: Tokenizer[Any]) -> None:
    assert words_stand_alone(tokenizer.splitter)
    assert words_stand_alone(WordSplitter())
    for pattern in (r"\p{L}+(?: \p{L}+)*", r"(?<=[a-ż]) \w+|\w+"):
        assert not words_stand_alone(LibrarySplitter(byte_level(pattern)))


def test_the_most_frequent_words_are_found_and_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts have weights. A word with a count of 1 is found, one of 65 characters never. Neither
    the order of shards nor the parts in which words are counted matter."""
    monkeypatch.setattr(word_shards, "MAX_WORDS", 3)
    longest, too_long = 63 * "a", 64 * "b"
    texts = {
        "a": ["Ala ma psa", "Ala ma kota", "Ala"],
        "b": ["Ala ma kota", "Ewa ma kota", "I psa psa psa", *2 * [longest, too_long]],
        "c": 3 * [longest, too_long],
    }
    texts["b"] += 3 * ["raz dwa"]

    def shards(**weights: float) -> list[Path]:
        for name, weight in weights.items():
            write_words(tmp_path / name, texts[name], round(1000 * weight))
        return [tmp_path / name for name in weights]

    for at_once in (1 << 29, 40):
        monkeypatch.setattr(word_shards, "_AT_ONCE", at_once)
        assert find_words(shards(a=1)) == ["\nAla", " kota", " ma"]
        two = shards(a=1, b=0.4)
        assert find_words(two) == find_words(two[::-1]) == ["\nAla", " ma", " psa"]
        assert find_words(shards(c=0.5)) == [f"\n{longest}"]
        assert find_words(shards(c=0.3)) == []


def test_numbered_words_are_the_windows_of_their_text(tmp_path: Path) -> None:
    """Gaps stand for the ends of lines, and for words that are not in the list."""
    words, lines = ["\nAla", " kota", " ma"], ["Ala ma psa", "Ala", "Ewa ma kota"]
    write_words(tmp_path / "a", lines, 1000)
    with workers(1, object) as apply:
        [run] = number_words([tmp_path / "a"], words, tmp_path, apply, 2)
    gap, space = IdSpace(3).gap, IdSpace(3)
    ids = np.array([0, 2, gap, gap, 0, gap, gap, 2, 1, gap], dtype=space.dtype)
    assert read_run(run) == sort_windows(ids, 2, space, weight=1000).tobytes()
