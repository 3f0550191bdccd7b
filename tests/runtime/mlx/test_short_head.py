"""A draft model's head without rare ids: the others keep their logits, in every kind of pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo
from random_models import decoder_of, emitted

from tokalign.build.alignment import align
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.request import Request
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId

TEXT = [DraftId(i) for i in (4, 16, 2, 40, 8, 7)]
OTHER = TEXT[-1]


def even_ids(model: Any) -> Any:
    """As many as there may be."""
    return np.arange(0, vocabulary_size(model), 2, dtype=np.uint32)


def sessions(model: Any) -> tuple[DraftModelSession, DraftModelSession]:
    """With the head of even ids, and with the whole one."""
    short, whole = DraftModelSession(model), DraftModelSession(model)
    short.shorten_head(even_ids(model))
    return short, whole


def assert_short(short: Any, whole: Any, others: Sequence[int] = (OTHER,)) -> None:
    """Even ids and these have their logits, and no other one is as likely."""
    ours, theirs = np.array(short), np.array(whole)
    known = np.zeros(ours.shape[-1], dtype=bool)
    known[::2] = True
    known[list(others)] = True
    assert np.allclose(ours[:, known], theirs[:, known], atol=1e-4)
    assert (ours[:, ~known] < theirs.min(axis=-1, keepdims=True)).all()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "gpt2", "cohere", "mamba2"])
def test_frequent_ids_and_those_of_the_text_keep_their_logits(name: str) -> None:
    short, whole = sessions(zoo.zoo_model(name))
    for text in (TEXT, [*TEXT, DraftId(10)]):
        assert_short(short.logits(text, last=2), whole.logits(text, last=2))
    fed = mx.array([12], mx.uint32)
    assert_short(short.feed(fed), whole.feed(fed))


@pytest.mark.parametrize("tied", [True, False])
def test_a_quantized_head_is_shortened_as_it_is(tied: bool) -> None:
    model = zoo.make_model("llama", tie_word_embeddings=tied)
    nn.quantize(model, group_size=32, bits=8)
    short, whole = sessions(model)
    assert_short(short.logits(TEXT), whole.logits(TEXT))


def test_a_tree_has_the_short_head_too() -> None:
    short, whole = sessions(zoo.zoo_model("llama"))
    tree = TokenTree((DraftId(6), DraftId(10), DraftId(12)), (-1, 0, 0), ("draft",) * 3)
    assert_short(short.tree(TEXT, tree), whole.tree(TEXT, tree))


def test_a_text_of_other_ids_has_the_whole_head_until_it_changes() -> None:
    short, whole = sessions(zoo.zoo_model("llama"))
    odd = [DraftId(i) for i in range(1, 41, 2)]
    assert np.array_equal(short.logits(odd), whole.logits(odd))
    text = [*odd, *TEXT[:5] * 60]
    assert_short(short.logits(text), whole.logits(text), odd)


def test_a_model_without_a_row_for_each_id_keeps_its_head() -> None:
    short, whole = sessions(zoo.zoo_model("talkie"))
    assert np.array_equal(short.logits(TEXT), whole.logits(TEXT))


def test_a_head_of_which_most_is_frequent_is_kept() -> None:
    model = zoo.zoo_model("llama")
    session = DraftModelSession(model)
    session.shorten_head(np.arange(vocabulary_size(model) - 3, dtype=np.uint32))
    assert np.array_equal(session.logits(TEXT), DraftModelSession(model).logits(TEXT))


def test_sessions_share_the_rows_and_not_the_text() -> None:
    model = zoo.zoo_model("llama")
    [first, _], [second, _] = sessions(model), sessions(model)
    first.logits(TEXT)
    text = [*TEXT[:-1], DraftId(9)]
    second.logits(text)
    whole = DraftModelSession(model)
    assert_short(second.logits(text), whole.logits(text), [9])
    assert_short(first.logits(TEXT), whole.logits(TEXT))


def test_a_cache_that_is_gone_on_with_brings_its_text() -> None:
    model = zoo.zoo_model("llama")
    before = DraftModelSession(model)
    before.logits(TEXT)
    assert before.held == TEXT
    before.shorten_head(even_ids(model))
    text = [*TEXT, DraftId(2)]
    assert_short(before.logits(text), DraftModelSession(model).logits(text))


SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4)}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("alternatives", [0, 3])
def test_the_output_is_the_target_s_own_with_few_frequent_ids(
    demo_pair: tuple[LanguageModel[Any], LanguageModel[Any]], sampling: str, alternatives: int
) -> None:
    def emit(decoder: Decoder) -> list[int]:
        prompt = decoder.prompt("Wczoraj rano", use_template=False)
        request = Request(prompt, max_tokens=20, sampler=SAMPLINGS[sampling])
        return emitted(Generation(decoder, request))

    target, draft = demo_pair
    plain = emit(decoder_of(demo_pair, method="plain"))
    ids = np.arange(0, len(draft.tokenizer.vocabulary), 3, dtype=np.uint32)
    tables = replace(align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary), frequent=ids)
    decoder = decoder_of(
        demo_pair,
        method="draft",
        translation="exact",
        num_draft_tokens=3,
        alternatives=alternatives,
    )
    drafting = replace(decoder.drafting, alignment=lambda: tables)
    assert emit(replace(decoder, drafting=drafting)) == plain
