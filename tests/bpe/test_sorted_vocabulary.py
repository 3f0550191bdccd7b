"""A sorted vocabulary against looking at every token."""

from __future__ import annotations

from typing import Any

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.bpe.encoder import TokenOrder
from tokalign.bpe.pretokenizer import WordSplitter
from tokalign.tables.alignment import HealingTrie
from tokalign.tokenizer.tokenizer import Tokenizer

few_bytes = st.lists(st.sampled_from([0, 97, 254, 255]), max_size=4).map(bytes)


@given(st.lists(few_bytes, max_size=30), few_bytes)
def test_ranges_are_what_comparing_every_token_gives(tokens: list[bytes], prefix: bytes) -> None:
    order = TokenOrder.of(tokens, (i for i, token in enumerate(tokens) if token))
    ids = {i for i, token in enumerate(tokens) if token}
    first, last = order.starting_with(prefix)
    assert set(order.ids[first:last]) == {i for i in ids if tokens[i].startswith(prefix)}
    first, last = order.extending(prefix)
    longer = {i for i in ids if tokens[i].startswith(prefix) and tokens[i] != prefix}
    assert set(order.ids[first:last]) == longer
    assert order.extended == {
        i
        for i in ids
        if any(tokens[j] != tokens[i] and tokens[j].startswith(tokens[i]) for j in ids)
    }
    assert set(HealingTrie.of(tokens).extending(prefix).tolist()) == longer


def test_extended_of_a_real_vocabulary(tokenizer: Tokenizer[Any]) -> None:
    order, tokens = tokenizer.bpe.order, tokenizer.bpe.tokens
    for token in order.ids[::997]:
        first, last = order.extending(tokens[token])
        assert (token in order.extended) == (first < last)


@given(st.text(alphabet=" aż\n", max_size=20))
@settings(max_examples=300)
def test_words_are_cut_after_anything_but_spaces(text: str) -> None:
    data = text.encode()
    assert WordSplitter().split(data) == regex.findall(rb" *[^ ]+| +", data)
