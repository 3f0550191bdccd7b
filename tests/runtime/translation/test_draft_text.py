"""The draft's view of the text: the committed bytes, canonically encoded, at every round."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, texts

from tokalign.runtime.translation.draft_text import ChunkedText, DraftText, map_specials
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

NAMES = ("bielik", "llama3.2", "qwen2.5")
PAIRS = [pair for pair in product(NAMES, NAMES) if pair[0] != pair[1]]


def tokenizers(pair: tuple[str, str]) -> tuple[Tokenizer[Any], Tokenizer[Any]]:
    return LOADED[pair[0]], LOADED[pair[1]]


LOADED = {name: resolve_tokenizer(name).tokenizer for name in NAMES}


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=25, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=8), given_tokens=st.integers(0, 5))
def test_bytes_are_the_committed_ones_and_ids_their_encoding(
    pair: tuple[str, str], text: str, cuts: list[int], given_tokens: int
) -> None:
    """Whatever the rounds, also in the middle of a character."""
    target, draft = tokenizers(pair)
    ids = target.encode(text)
    given_tokens = min(given_tokens, len(ids))
    view = DraftText(target, draft)
    view.follow(ids[:given_tokens])
    for cut in sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)}):
        if cut < given_tokens:
            continue
        view.follow(ids[:cut])
        committed = target.vocabulary.bytes_of(ids[:cut])
        committed = committed.removeprefix(b" ") if target.spec.dummy_prefix else committed
        expected = b" " + committed if draft.spec.dummy_prefix and committed else committed
        assert view.segment.text == expected
        assert view.ids == draft.bpe.encode(expected)
    assert view.ids == draft.bpe.encode(draft.text_bytes(text))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_prompt_goes_on_where_it_ended(pair: tuple[str, str]) -> None:
    """The open segment of the prompt and the output are encoded as one text."""
    target, draft = tokenizers(pair)
    prompt, rest = "Zażółć gę", "ślą jaźń"
    covered = target.encode(prompt)
    output = target.bpe.encode(rest.encode())
    view = DraftText(target, draft, draft_prompt=draft.encode(prompt), covered=covered)
    view.follow([*covered, *output])
    assert view.ids == draft.encode(prompt + rest)


def test_special_tokens_are_translated_by_role_then_spelling_then_as_text() -> None:
    bielik, llama, qwen = (LOADED[name] for name in NAMES)
    specials = bielik.vocabulary.special_ids
    end, call, think = (specials[s] for s in ("<|im_end|>", "<tool_call>", "<think>"))
    assert map_specials(bielik, llama)[end] == llama.vocabulary.roles.turn_end
    assert map_specials(bielik, qwen)[end] == qwen.vocabulary.roles.turn_end
    assert map_specials(bielik, qwen)[call] == qwen.vocabulary.special_ids["<tool_call>"]
    assert call not in map_specials(bielik, llama)

    committed = [*bielik.encode("Liczę."), call, *bielik.encode("dwa"), end, *bielik.encode("Tak")]
    view = DraftText(bielik, qwen)
    view.follow(committed)
    assert view.ids == qwen.encode("Liczę.<tool_call>dwa<|im_end|>Tak", specials=True)
    view = DraftText(bielik, llama)
    view.follow([*bielik.encode("Liczę."), think, *bielik.encode("dwa"), end])
    turn_end = llama.vocabulary.roles.turn_end
    assert view.ids == [*llama.encode("Liczę.<think>dwa"), turn_end]


def test_a_draft_with_a_dummy_prefix_gets_its_own_in_every_segment() -> None:
    bielik, qwen = LOADED["bielik"], LOADED["qwen2.5"]
    end = qwen.vocabulary.special_ids["<|im_end|>"]
    view = DraftText(qwen, bielik)
    view.follow([*qwen.encode("Tak"), end, *qwen.encode("Nie")])
    assert view.ids == bielik.encode("Tak<|im_end|>Nie", specials=True)


def test_an_output_that_is_not_canonical_keeps_its_bytes() -> None:
    bielik, llama = LOADED["bielik"], LOADED["llama3.2"]
    letters = [bielik.vocabulary.id_of[bytes([byte])] for byte in b" Krakowska"]
    view = DraftText(bielik, llama)
    view.follow(letters)
    assert view.ids == llama.encode("Krakowska")


def test_the_published_way_keeps_the_bytes_but_cuts_words() -> None:
    bielik, llama = LOADED["bielik"], LOADED["llama3.2"]
    view = ChunkedText(bielik, llama)
    ids = bielik.encode(SENTENCES[0])
    for end in range(1, len(ids) + 1):
        view.follow(ids[:end])
    assert view.segment.text == SENTENCES[0].encode()
    assert len(view.ids) > len(llama.encode(SENTENCES[0]))
