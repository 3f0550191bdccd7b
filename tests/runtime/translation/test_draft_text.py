"""The draft's view of the text: the committed bytes, canonically encoded, in every round."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any
from unicodedata import is_normalized

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polish import texts

from tokalign.runtime.chat import Prompt, encode_prompt
from tokalign.runtime.generate import TextStream
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import ChunkedText, DraftText, map_specials
from tokalign.runtime.translation.whole_text import DraftReading
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=permutations(("bielik", "llama", "qwen"), 2), ids="-".join)
def pair(request: pytest.FixtureRequest) -> Pair:
    target, draft = request.param
    return Pair(request.getfixturevalue(target), request.getfixturevalue(draft))


@settings(max_examples=25, deadline=None)
@example(text="A\u0301", cuts=[], given_tokens=0)
@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=8), given_tokens=st.integers(0, 5))
def test_bytes_are_the_committed_ones_and_ids_their_encoding(
    pair: Pair, text: str, cuts: list[int], given_tokens: int
) -> None:
    """Wherever the rounds end, also in the middle of a character."""
    target, draft = pair.target, pair.draft
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
    # Committed bytes are never composed, a whole text may be; and to some targets "▁" is a space.
    if is_normalized("NFC", text) and "▁" not in text:
        assert view.ids == draft.bpe.encode(draft.text_bytes(text))


@pytest.mark.parametrize("text", ["kot", " kot", "  kot"])
def test_a_text_that_begins_with_a_space_may_need_no_other_one(
    bielik: Tokenizer[Any], llama: Tokenizer[Any], text: str
) -> None:
    draft: Tokenizer[Any] = Tokenizer(replace(bielik.spec, prefix_unless_space=True))
    view = DraftText(llama, draft)
    view.follow(llama.encode(text))
    assert view.ids == draft.encode(text)


def test_the_end_of_the_prompt_and_the_output_are_encoded_as_one_text(pair: Pair) -> None:
    target, draft = pair.target, pair.draft
    prompt, rest = "Zażółć gę", "ślą jaźń"
    covered = target.encode(prompt)
    output = target.bpe.encode(rest.encode())
    view = DraftText(target, draft, draft_prompt=draft.encode(prompt), covered=covered)
    view.follow([*covered, *output])
    assert view.ids == draft.encode(prompt + rest)


def test_special_tokens_are_translated_by_role_then_spelling_then_as_text(
    bielik: Tokenizer[Any], llama: Tokenizer[Any], qwen: Tokenizer[Any]
) -> None:
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


def test_a_draft_without_bos_does_not_read_how_it_is_spelled(
    bielik: Tokenizer[Any], llama: Tokenizer[Any], qwen: Tokenizer[Any]
) -> None:
    for target in (bielik, llama):
        view, bos = DraftText(target, qwen), target.vocabulary.roles.bos
        assert bos is not None
        view.follow([bos, *target.encode("Wisła jest")])
        assert view.ids == qwen.encode("Wisła jest")
        view = DraftText(target, qwen)
        view.follow([*target.encode("do"), bos, *target.encode("mu")])
        assert view.ids == [*qwen.encode("do"), *qwen.encode("mu")] != qwen.encode("domu")


def test_what_is_put_before_texts_is_not_read_as_text(
    bielik: Tokenizer[Any], llama: Tokenizer[Any]
) -> None:
    """Two ids without a role, as GLM's `[gMASK]<sop>`: as the target's, and as the draft's."""
    before = (
        bielik.vocabulary.special_ids["<think>"],
        bielik.vocabulary.special_ids["<tool_call>"],
    )
    roles = replace(bielik.spec.roles, bos=None)
    glm = Tokenizer[Any](replace(bielik.spec, opening=before, roles=roles))
    bos, text = llama.vocabulary.roles.bos, "Wisła jest"
    other = Tokenizer[Any](replace(llama.spec, opening=(bos,)))
    for target, draft in ((glm, other), (other, glm)):
        ids = encode_prompt(target, text)
        view = Prompt(target=ids).draft_text(Pair(target, draft))
        view.follow(ids)
        assert view.ids == encode_prompt(draft, text)
        assert DraftReading(Pair(target, draft), ids).ids == view.ids


def test_an_output_that_is_not_canonical_keeps_its_bytes(
    bielik: Tokenizer[Any], llama: Tokenizer[Any]
) -> None:
    letters = [bielik.vocabulary.id_of[bytes([byte])] for byte in b" Krakowska"]
    view = DraftText(bielik, llama)
    view.follow(letters)
    assert view.ids == llama.encode("Krakowska")


def test_chunks_keep_the_bytes_but_cut_words(bielik: Tokenizer[Any], llama: Tokenizer[Any]) -> None:
    """The example at the head of `committed_text.py`."""
    committed = bielik.encode("Dziękuję bardzo")
    assert [bielik.vocabulary.tokens[i] for i in committed[-3:]] == [b" b", b"ard", b"zo"]
    whole, chunked = DraftText(bielik, llama), ChunkedText(bielik, llama)
    for end in range(1, len(committed) + 1):
        whole.follow(committed[:end])
        chunked.follow(committed[:end])
    assert [llama.vocabulary.tokens[i] for i in whole.ids[-1:]] == [b" bardzo"]
    assert [llama.vocabulary.tokens[i] for i in chunked.ids[-3:]] == [b" b", b"ard", b"zo"]
    assert whole.segment.text == chunked.segment.text == "Dziękuję bardzo".encode()


@pytest.mark.parametrize("once", [(True, True), (True, False), (False, True), (False, False)])
def test_a_dummy_prefix_that_is_put_once_is_not_put_after_special_tokens(
    bielik: Tokenizer[Any], once: tuple[bool, bool]
) -> None:
    target, draft = (Tokenizer[Any](replace(bielik.spec, prefix_once=one)) for one in once)
    text = "Ala<|im_end|>ma kota<|im_end|> i psa"
    ids = target.encode(text, specials=True)
    view, stream = DraftText(target, draft), TextStream(target)
    for end in range(1, len(ids) + 1):
        view.follow(ids[:end])
    assert view.ids == draft.encode(text, specials=True)
    assert "".join(map(stream.push, ids)) + stream.finish() == text
