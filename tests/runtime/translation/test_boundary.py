"""What follows the committed ids: exact against encoding the whole text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, byte_strings
from small_tokenizers import of_merges

from tokalign.runtime.translation.committed_text import Boundary
from tokalign.storage import TABLES, shipped
from tokalign.tables.alignment import MergeSites
from tokalign.tables.bundle import read_bundle
from tokalign.tokenizer.bpe.pretokenizer import WordSplitter
from tokalign.tokenizer.tokenizer import Tokenizer


def boundary_after(tokenizer: Tokenizer[Any], ids: list[Any]) -> Boundary:
    boundary = Boundary(tokenizer)
    boundary.follow(ids)
    return boundary


def rest_of(tokenizer: Tokenizer[Any], committed: list[Any], text: bytes) -> tuple[Any, ...] | None:
    """What follows the committed ids where the whole text is encoded at once."""
    whole = tokenizer.bpe.encode(text)
    kept = whole[: len(committed)] == committed
    return tuple(whole[len(committed) :]) if kept else None


@given(data=byte_strings, cut=st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_what_follows_is_what_encoding_the_whole_gives_or_is_absorbed(
    tokenizer: Tokenizer[Any], data: bytes, cut: int
) -> None:
    """Committed text that is canonical by itself, and any bytes after it."""
    text = tokenizer.text_bytes(SENTENCES[0])[:cut].decode("utf-8", "ignore").encode()
    committed = tokenizer.bpe.encode(text)
    expected = rest_of(tokenizer, committed, text + data)
    assert boundary_after(tokenizer, committed).encode(data) == expected


def test_growing_step_by_step_is_the_same_as_starting_there(tokenizer: Tokenizer[Any]) -> None:
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence)
        growing = Boundary(tokenizer)
        for cut in range(1, len(ids)):
            growing.follow(ids[:cut])
            for data in (b" kot", b"om", b"\n", b"1", "ż".encode()[:1], b""):
                assert growing.encode(data) == boundary_after(tokenizer, ids[:cut]).encode(data)


def test_a_prompt_is_cut_once_however_many_tokens_it_has(
    bielik: Tokenizer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no piece is ever settled, cutting it again for every token would take minutes."""
    data, cut = " ".join(SENTENCES).encode(), []

    class Unsettled(WordSplitter):
        def split(self, text: bytes) -> list[bytes]:
            cut.append(len(text))
            return super().split(text)

        def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
            return 0

    monkeypatch.setattr(bielik.bpe, "splitter", Unsettled())
    boundary_after(bielik, bielik.bpe.encode(data))
    assert sum(cut) <= 2 * len(data)


def test_tokens_with_a_space_inside_are_followed_exactly() -> None:
    pairs = [(b"a", b" "), (b" ", b"b"), (b"a ", b"b"), (b"b", b"a"), (b"b", b" b"), (b" ", b" ")]
    tokenizer = of_merges(b"ab ", pairs)
    for letters in product(b"ab ", repeat=6):
        text = bytes(letters)
        committed = tokenizer.bpe.encode(text[:3])
        expected = rest_of(tokenizer, committed, text)
        assert boundary_after(tokenizer, committed).encode(text[3:]) == expected


def test_after_text_that_is_not_canonical_only_the_last_token_counts(
    bielik: Tokenizer[Any],
) -> None:
    tokens = bielik.vocabulary.id_of
    spelled = [tokens[b" "], tokens[b"k"], tokens[b"o"]]
    boundary = boundary_after(bielik, spelled)
    assert boundary.encode(b" kot") == tuple(bielik.bpe.encode(b" kot"))
    alone = bielik.bpe.encode(b"om")
    assert boundary.encode(b"m") == (tuple(alone[1:]) if alone[0] == tokens[b"o"] else None)


def test_a_special_token_ends_all_that_could_absorb(bielik: Tokenizer[Any]) -> None:
    ids = [*bielik.encode("kom"), 32001]
    assert boundary_after(bielik, ids).encode(b"puter") == tuple(bielik.bpe.encode(b"puter"))


@pytest.fixture(scope="module")
def bielik_sites() -> MergeSites:
    """The shipped table of Bielik's merge sites."""
    bundle = read_bundle(shipped(TABLES) / "bielik" / "llama3.2.alignment.tok")
    return MergeSites.from_bundle(bundle, 32_128)


def test_the_documented_example(bielik: Tokenizer[Any], bielik_sites: MergeSites) -> None:
    """The example of `Boundary`, and that of the module `absorption`."""
    boundary = Boundary(bielik, bielik_sites)
    boundary.follow(bielik.encode("Mam kom"))

    def spelled(ids: Iterable[int]) -> list[bytes]:
        return [bielik.vocabulary.tokens[i] for i in ids]

    assert spelled(bielik.encode("Mam komputer")) == [b" Mam", b" kom", b"put", b"er"]
    assert spelled(boundary.encode(b"puter") or ()) == [b"put", b"er"]
    assert spelled(bielik.encode("Mam komet")) == [b" Mam", b" k", b"omet"]
    assert boundary.encode(b"et") is None
    assert not boundary.absorbs(b"et")
    assert spelled(bielik.encode("Mam kometa")) == [b" Mam", b" kom", b"eta"]
    assert not boundary.absorbs(b"eta")
    assert boundary.absorbs(b"etr")
    first, end = bielik.bpe.order.starting_with(b"etr")
    assert bielik.bpe.order.spelled[first:end] == [b"etr", b"etric", b"etry"]


def test_the_documented_merge_site(bielik: Tokenizer[Any], bielik_sites: MergeSites) -> None:
    """The example of `MergeSites`, and what it says of the shortest sites."""
    tokens = bielik.vocabulary.tokens
    nie = bielik.vocabulary.id_of[b" nie"]
    assert b"d" in bielik_sites.sites[bielik_sites.rows[nie]]
    assert bielik_sites.absorbs(nie, b"d")
    assert bielik_sites.absorbs(nie, b"dziela")
    niedziela = [tokens[i] for i in bielik.encode("niedziela")]
    assert niedziela == [b" n", b"ied", b"z", b"iel", b"a"]


def test_of_a_long_piece_only_the_end_is_encoded_again(tokenizer: Tokenizer[Any]) -> None:
    ids = tokenizer.encode("=" * 4000)
    boundary = Boundary(tokenizer)
    boundary.follow(ids)
    assert len(boundary._left) < 200
    assert boundary.encode(b" and") == tuple(tokenizer.bpe.encode(b" and"))
