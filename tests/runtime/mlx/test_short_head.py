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
from block_drafters import block_config, dspark_config, random_block_drafter, second_config
from drafter_cases import PROMPT, SAMPLINGS
from eagle_drafters import eagle_config, random_eagle
from random_models import decoder_of, emitted, generate, random_model, rounds_of
from small_tables import table_of

from tokalign.build.alignment import align
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.generate import Generation
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.request import Request
from tokalign.tables.dictionary import Dictionaries
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


def test_a_dictionary_without_entries_shortens_no_head() -> None:
    """mlx ends the process where a quantized head has no rows."""
    model = zoo.make_model("llama")
    nn.quantize(model, group_size=32, bits=8)
    session = DraftModelSession(model)
    session.shorten_head(Dictionaries({"pl": table_of({}, 64)}).known_ids)
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


# -- the target's head, in a drafter ---------------------------------------------------------------


NAMES = ("eagle3", "dflash", "dflash 2", "dspark")


def drafter_of(name: str) -> Any:
    """Without a head of its own, for `random_model`."""
    target = random_model()
    if name == "eagle3":
        whole = {"draft_vocab_size": vocabulary_size(target)}
        return random_eagle(target, eagle_config(target, **whole), head=False)
    make = {"dflash": block_config, "dflash 2": second_config, "dspark": dspark_config}[name]
    return random_block_drafter(target, config=make(target))


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_s_logits_are_those_of_frequent_ids(name: str) -> None:
    drafter, target = drafter_of(name), random_model()
    session = TargetModelSession(target, watch=drafter.watch)
    short = drafter.short_session(session, even_ids(target))
    assert short.head is not None
    short.head.follow(TEXT)
    x = mx.random.normal((3, drafter._ends.hidden_size))
    assert_short(short.head(x), drafter._ends.unembed(x))
    assert short._drafter._ends.unembed is short.head
    assert drafter._ends.unembed is not short.head, "other requests have heads of their own"


def test_a_drafter_with_a_head_of_its_own_keeps_it() -> None:
    target = random_model()
    own = random_eagle(target, eagle_config(target))
    session = TargetModelSession(target, watch=own.watch)
    assert own.short_session(session, even_ids(target)).head is None
    assert drafter_of("eagle3").short_session(session, None).head is None, "no dictionary"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_guesses_from_a_short_head_never_change_the_output(name: str, sampling: str) -> None:
    drafter, chosen = drafter_of(name), SAMPLINGS[sampling]
    plain = generate(NoDrafter(), chosen, tokens=30)
    session = TargetModelSession(random_model(), watch=drafter.watch)
    frequent = np.array(sorted({*plain, *PROMPT}), dtype=np.uint32)
    short = drafter.short_session(session, frequent)
    guesses = with_trained(short, sampler=chosen.draft_sampler)
    ids, rounds = rounds_of(guesses, session, chosen, limits=Limits(max_tokens=30))
    assert ids == plain
    drafted = {i for one in rounds for i in one.tree.ids}
    assert drafted
    assert drafted <= {*plain, *PROMPT}


def test_a_dictionary_knows_the_ids_that_it_expects() -> None:
    one, other = table_of({(1,): ((5, 2), 0.8)}, 96), table_of({(3,): ((7,), 0.9)}, 96)
    assert {5, 2} <= {*one.known_ids.tolist()}
    both = Dictionaries({"a": one, "b": other}).known_ids.tolist()
    assert both == sorted({*one.known_ids.tolist(), *other.known_ids.tolist()})
