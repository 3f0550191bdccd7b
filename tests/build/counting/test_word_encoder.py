"""Encoding in batches equals encoding one by one, whatever was met before; lists of words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import texts

from tokalign.build.corpus import Corpus
from tokalign.build.counting.word_encoder import WordEncoder, WordList, words_stand_alone
from tokalign.build.pack import find_words
from tokalign.tokenizer.bpe.pretokenizer import WordSplitter
from tokalign.tokenizer.library import LibrarySplitter
from tokalign.tokenizer.spec import byte_level
from tokalign.tokenizer.tokenizer import Tokenizer

lines = st.lists(texts.map(lambda text: text.replace("\n", " ")), max_size=6)


@cache
def encoder_of(tokenizer: Tokenizer[Any], max_words: int = 1 << 20) -> WordEncoder:
    """One encoder for all examples of a test: what it met before must not matter."""
    return WordEncoder(tokenizer, max_words)


def assert_encoded(encoder: WordEncoder, tokenizer: Tokenizer[Any], shard: list[str]) -> None:
    """Each line as it is encoded alone, and a gap after it."""
    one_by_one = [i for line in shard for i in (*tokenizer.encode(line), encoder.space.gap)]
    assert encoder.encode(shard).tolist() == one_by_one


@given(shard=lines, max_words=st.sampled_from([5, 1 << 20]))
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_a_shard_is_its_lines_encoded_whatever_came_before(
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
    """Texts have weights. A word with a count of 1 is found, one of 65 characters never."""
    monkeypatch.setattr("tokalign.build.pack.MAX_WORDS", 3)
    longest, too_long = "\n" + 63 * "a", "\n" + 64 * "b"
    for name, text in {
        "a.txt": "Ala ma psa\nAla ma kota\nAla",
        "b.txt": "Ala ma kota\nEwa ma kota\nI psa psa psa\n"
        + 2 * (longest + too_long)[1:]
        + 3 * "\nraz dwa",
        "c.txt": 3 * (longest + too_long),
    }.items():
        (tmp_path / name).write_text(text)

    def found(*names: str, **weights: float) -> list[str]:
        named = {f"{name}.txt": weight for name, weight in weights.items()}
        return list(
            find_words(Corpus([tmp_path / f"{n}.txt" for n in names], weights=named)).vocabulary
        )

    assert found("a") == ["\nAla", " kota", " ma"]
    assert found("a", "b", b=0.4) == ["\nAla", " ma", " psa"]
    assert found("c", c=0.5) == [longest]
    assert found("c", c=0.3) == []

    words = WordList(["\nAla", " kota", " ma"])
    gap = words.space.gap
    assert words.encode(["Ala ma psa", "Ala", "Ewa ma kota"]).tolist() == [
        *(0, 2, gap, gap),
        *(0, gap),
        *(gap, 2, 1, gap),
    ]
