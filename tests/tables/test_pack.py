"""A pack comes back from its sections, and its bounds are where the format says."""

from __future__ import annotations

import lzma
import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.errors import BundleError
from tokalign.tables import pack as format
from tokalign.tables.bundle import Bundle
from tokalign.tables.pack import COUNTS, Pack, WordNgrams, levels_of, word_probabilities

WORDS = (" kot", "\nAla", " ma", ",")


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def small() -> Pack:
    """Words by falling counts, and the pairs " ma kot", "Ala ma" and " kot,"."""
    none = numbers(0, 0, 0, 0)
    words = WordNgrams(
        prefix=none, suffix=none, last=numbers(0, 1, 2, 3), levels=numbers(9, 7, 7, 2)
    )
    pairs = WordNgrams(
        prefix=numbers(0, 1, 2),
        suffix=numbers(3, 2, 0),
        last=numbers(3, 2, 0),
        levels=numbers(2, 5, 6),
    )
    return Pack(WORDS, [words, pairs])


sections = cache(lambda: small().to_sections())


def bundle(**changes: Any) -> Bundle:
    said = {"words": 4, "max_order": 2, **changes}
    return Bundle(kind="pack", fingerprints={}, parameters=said, sections=sections())


def test_a_pack_comes_back() -> None:
    again = Pack.from_bundle(bundle())
    assert list(again.words) == list(WORDS)
    for ours, theirs in zip(small().orders, again.orders, strict=True):
        for field in ("prefix", "suffix", "last", "levels"):
            assert getattr(theirs, field).tolist() == getattr(ours, field).tolist()


def test_the_shares_of_words_are_those_of_their_counts() -> None:
    total = COUNTS[[9, 7, 7, 2]].sum()
    found = word_probabilities(bundle(), 2)
    assert list(found) == [" kot", "\nAla"]
    assert found[" kot"] == COUNTS[9] / total


def test_more_ngrams_than_a_reader_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted in all orders together, as a builder counts them."""
    monkeypatch.setattr(format, "MAX_NGRAMS", 7)
    Pack.from_bundle(bundle())
    monkeypatch.setattr(format, "MAX_NGRAMS", 6)
    with pytest.raises(BundleError, match="more n-grams than there can be"):
        Pack.from_bundle(bundle())


def test_a_word_is_no_longer_than_what_a_builder_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a hundred megabytes would take gigabytes to encode."""
    monkeypatch.setattr(format, "LONGEST_WORD", 4)
    Pack.from_bundle(bundle())
    monkeypatch.setattr(format, "LONGEST_WORD", 3)
    with pytest.raises(BundleError, match="words of 1 to 4 characters, not of 1 to 3"):
        word_probabilities(bundle(), 2)


def test_words_are_counted_before_they_take_memory() -> None:
    """A pack of a few kilobytes can unpack to a quarter of a billion empty words."""
    text = lzma.compress(bytes(1 << 22))
    forged = replace(bundle(), sections={**sections(), "words.text": text})
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match="does not have 4 words"):
            word_probabilities(forged)
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("changes", [{"words": 3}, {"words": 5}, {"max_order": 3}, {"words": 0}])
def test_a_header_that_says_something_else_is_refused(changes: Any) -> None:
    with pytest.raises(BundleError):
        Pack.from_bundle(bundle(**changes))


@given(st.floats(1, 1e6))
def test_a_count_has_the_level_of_the_closest_in_proportion(count: float) -> None:
    [level] = levels_of(np.array([count])).tolist()
    off = [max(known / count, count / known) for known in COUNTS.tolist()]
    assert off[level] <= min(off) * (1 + 1e-9)
