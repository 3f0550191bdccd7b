"""The canonical encoder on any bytes, with byte fallback and with `ignore_merges`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import regex
from canonical import is_canonical_piece
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import byte_strings, texts
from small_tokenizers import of_merges, random_merges

from tokalign.tables.alignment import HealingTrie
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder, TokenOrder
from tokalign.tokenizer.bpe.pretokenizer import WordSplitter, incomplete_tail
from tokalign.tokenizer.tokenizer import Tokenizer


def test_the_worked_examples(bielik: Tokenizer[Any]) -> None:
    def spelled(ids: list[Any]) -> list[bytes]:
        return [bielik.vocabulary.tokens[i] for i in ids]

    assert spelled(bielik.bpe.encode(b" Ala ma kota")) == [b" Al", b"a", b" ma", b" k", b"ota"]
    encoder = IncrementalEncoder(bielik.bpe)
    encoder.push(b" War")
    assert spelled(encoder.ids) == [b" War"]
    encoder.push(b"szawa")
    assert spelled(encoder.ids) == [b" Wars", b"z", b"awa"]


def test_with_ignore_merges_a_piece_that_is_a_token_stays_whole(llama: Tokenizer[Any]) -> None:
    bpe, tokens = llama.bpe, llama.spec.tokens
    unreachable = (i for i in bpe.order.ids if not bpe.validity.reachable(i))
    for _ in range(50):
        token = next(unreachable)
        assert bpe.encode_piece(tokens[token]) == (token,)
        assert is_canonical_piece(bpe, [token])


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


few_bytes = st.lists(st.sampled_from([0, 97, 254, 255]), max_size=4).map(bytes)


@given(st.lists(few_bytes, max_size=30), few_bytes)
def test_ranges_are_what_comparing_every_token_gives(tokens: list[bytes], prefix: bytes) -> None:
    order = TokenOrder.of(tokens, (i for i, token in enumerate(tokens) if token))
    ids = {i for i, token in enumerate(tokens) if token}
    at = order.find(prefix)
    same = (i for i in ids if tokens[i] == prefix)
    assert (None if at is None else order.ids[at]) == min(same, default=None)
    first, last = order.starting_with(prefix)
    assert set(order.ids[first:last]) == {i for i in ids if tokens[i].startswith(prefix)}
    first, last = order.extending(prefix)
    longer = {i for i in ids if tokens[i].startswith(prefix) and tokens[i] != prefix}
    assert set(order.ids[first:last]) == longer
    assert set(HealingTrie(tokens).extending(prefix).tolist()) == longer


@given(st.text(alphabet=" aż\n", max_size=20))
@settings(max_examples=300)
def test_words_are_cut_after_anything_but_spaces(text: str) -> None:
    data = text.encode()
    assert WordSplitter().split(data) == regex.findall(rb" *[^ ]+| +", data)


@given(parts=st.lists(byte_strings, max_size=5))
@settings(max_examples=300)
@pytest.mark.slow
def test_pushing_parts_equals_encoding_the_whole(
    tokenizer: Tokenizer[Any], parts: list[bytes]
) -> None:
    encoder = IncrementalEncoder(tokenizer.bpe)
    for part in parts:
        before = encoder.ids[: encoder.settled]
        encoder.push(part)
        assert encoder.ids[: len(before)] == before
    assert encoder.text == b"".join(parts) == tokenizer.vocabulary.bytes_of(encoder.ids)
    assert encoder.ids == tokenizer.bpe.encode(encoder.text)


@pytest.mark.parametrize("parts", ["a", "=", "中文字", "🐟👩", "- ", "ab=", "xyzzy"])
def test_a_long_piece_is_encoded_at_its_end_alone(tokenizer: Tokenizer[Any], parts: str) -> None:
    """A model may repeat itself without end; the work of a token must not grow with that."""
    encoder, data = IncrementalEncoder(tokenizer.bpe), (parts * 400).encode()[:1200]
    merge, longest = tokenizer.bpe.merges.apply, 0
    settle, searched = tokenizer.splitter.count_settled, 0

    def apply(symbols: list[Any]) -> Any:
        nonlocal longest
        longest = max(longest, len(symbols))
        return merge(symbols)

    def count_settled(text: bytes, pieces: Any) -> int:
        nonlocal searched
        searched = max(searched, len(text))
        return settle(text, pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tokenizer.bpe.merges), "apply", lambda _, symbols: apply(symbols))
        patch.setattr(tokenizer.splitter, "count_settled", count_settled)
        kept = tokenizer.bpe.encode_piece.cache_info().currsize  # type: ignore[attr-defined]
        for at in range(0, len(data), 5):
            encoder.push(data[at : at + 5])
        kept = tokenizer.bpe.encode_piece.cache_info().currsize - kept  # type: ignore[attr-defined]
    assert encoder.ids == tokenizer.bpe.encode(data)
    assert longest < 600
    assert kept < 120
    assert searched < 100


def test_of_a_long_piece_few_tokens_are_looked_at(bielik: Tokenizer[Any]) -> None:
    """Every token of a text without spaces was spelled again after each new one."""

    class Counted(list[bytes]):
        lookups = 0

        def __getitem__(self, index: Any) -> Any:
            self.lookups += 1
            return super().__getitem__(index)

    encoder, data = IncrementalEncoder(bielik.bpe), ("中文字a1=" * 2000).encode()
    encoder.push(data)
    tokens = Counted(bielik.bpe.tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bielik.bpe, "tokens", tokens)
        encoder.push(b"ab")
    assert encoder.ids == bielik.bpe.encode(data + b"ab")
    assert tokens.lookups < 100


def test_a_long_piece_that_gets_shorter_is_encoded_anew(llama: Tokenizer[Any]) -> None:
    """The last space of many belongs to the word that comes after them."""
    encoder, spaces = IncrementalEncoder(llama.bpe), b" " * 300
    for data in (spaces, b" ", b"a", b"b c"):
        encoder.push(data)
    assert encoder.ids == llama.bpe.encode(spaces + b" ab c")


@given(data=byte_strings, text=texts)
def test_an_incomplete_tail_is_the_beginning_of_a_character(data: bytes, text: str) -> None:
    tail = incomplete_tail(data)
    if tail:
        lead = data[len(data) - tail]
        needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        assert lead >= 0xC0
        assert tail < needed
    elif data:
        assert data[-1] < 0xC0 or data[-1] >= 0xF8
    last = text[-1:].encode()
    for missing in range(len(last) + 1):
        half = text.encode()[: len(text.encode()) - missing]
        assert incomplete_tail(half) == (len(last) - missing if missing else 0)
