"""What follows the committed ids: exact against encoding the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, byte_strings

from tokalign.build.alignment.merge_sites import find_merge_sites
from tokalign.tables.boundary import Boundary
from tokalign.tokenizer.tokenizer import Tokenizer


def behind(tokenizer: Tokenizer[Any], ids: list[Any]) -> Boundary:
    boundary = Boundary(tokenizer)
    boundary.follow(ids)
    return boundary


def test_the_rest_of_a_text_is_encoded_as_in_the_whole(tokenizer: Tokenizer[Any]) -> None:
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence)
        for cut in range(1, len(ids)):
            rest = tokenizer.vocabulary.bytes_of(ids[cut:])
            assert behind(tokenizer, ids[:cut]).encode(rest) == tuple(ids[cut:])


@given(data=byte_strings, cut=st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_what_follows_is_what_encoding_the_whole_gives_or_is_absorbed(
    tokenizer: Tokenizer[Any], data: bytes, cut: int
) -> None:
    """Committed text that is canonical by itself, and any bytes behind it."""
    text = tokenizer.text_bytes(SENTENCES[0])[:cut].decode("utf-8", "ignore").encode()
    committed = tokenizer.bpe.encode(text)
    whole = tokenizer.bpe.encode(text + data)
    kept = whole[: len(committed)] == committed
    expected = tuple(whole[len(committed) :]) if kept else None
    assert behind(tokenizer, committed).encode(data) == expected


def test_growing_step_by_step_is_the_same_as_starting_there(tokenizer: Tokenizer[Any]) -> None:
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence)
        growing = Boundary(tokenizer)
        for cut in range(1, len(ids)):
            growing.follow(ids[:cut])
            for data in (b" kot", b"om", b"\n", b"1", "ż".encode()[:1], b""):
                assert growing.encode(data) == behind(tokenizer, ids[:cut]).encode(data)


def test_behind_text_that_is_not_canonical_only_the_last_token_counts(
    bielik: Tokenizer[Any],
) -> None:
    tokens = bielik.vocabulary.id_of
    spelled = [tokens[b" "], tokens[b"k"], tokens[b"o"]]
    boundary = behind(bielik, spelled)
    assert boundary.encode(b" kot") == tuple(bielik.bpe.encode(b" kot"))
    alone = bielik.bpe.encode(b"om")
    assert boundary.encode(b"m") == (tuple(alone[1:]) if alone[0] == tokens[b"o"] else None)


def test_a_special_token_ends_all_that_could_absorb(bielik: Tokenizer[Any]) -> None:
    ids = [*bielik.encode("kom"), 32001]
    assert behind(bielik, ids).encode(b"puter") == tuple(bielik.bpe.encode(b"puter"))


@pytest.mark.slow
def test_a_merge_site_is_never_kept(bielik: Tokenizer[Any]) -> None:
    """The table says so before encoding does: the stronger statement implies the weaker."""
    sites = find_merge_sites(bielik)
    for sentence in SENTENCES[:3]:
        ids = bielik.encode(sentence)
        for cut in range(1, len(ids)):
            boundary = Boundary(bielik, sites)
            boundary.follow(ids[:cut])
            for data in (b"a", b"om", b"nie", b" nie", "ść".encode(), b"."):
                assert not boundary.absorbs(data) or boundary.encode(data) is None
