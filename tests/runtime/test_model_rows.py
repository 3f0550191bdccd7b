"""A model may have fewer ids than its tokenizer, or more: its own rows bound what is proposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from drafter_cases import penalize_last
from random_drafters import random_drafter
from random_models import decoder_of, emitted, random_model
from small_tables import table_of
from small_tokenizers import trained_tokenizer

from tokalign.errors import UsageError
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.request import Request
from tokalign.tables.dictionary import SOURCE, Dictionaries
from tokalign.tables.logit_rows import ID_BITS, LogitRows, codes_of, keys_of
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

IDS = 320
"""The size of the target's tokenizer; the draft's has 300. Every byte is a token."""

TARGETS, DRAFTS = {"cut": 270, "padded": 384}, {"cut": 280, "padded": 320}
PROMPT, TOKENS = b" kot ma Ala a", 20


SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4),
    "processed": Sampling(temperature=0.8, seed=6, processors=(penalize_last,)),
}
METHODS: dict[str, dict[str, Any]] = {
    "copy": {"method": "copy"},
    "dictionary": {"method": "dictionary"},
    "dictionary, 3 ids": {"method": "dictionary", "num_draft_tokens": 3},
    "context": {"method": "draft", "translation": "context:5"},
    "intersection": {"method": "draft", "translation": "intersection"},
    "exact": {"method": "draft", "translation": "exact"},
    "exact, chain": {"method": "draft", "translation": "exact", "alternatives": 0},
    "none": {"method": "draft", "translation": "none"},
    "drafter": {"method": "drafter"},
    "hybrid": {"method": "hybrid"},
    "hybrid, 15 rows": {"method": "hybrid", "draft_rows": 15},
    "hybrid, exact": {"method": "hybrid", "translation": "exact"},
}


@pytest.fixture(scope="module")
def tokenizers() -> list[Tokenizer[Any]]:
    return [trained_tokenizer(IDS), trained_tokenizer(300)]


def model(tokenizer: Tokenizer[Any], rows: int, seed: int = 0) -> LanguageModel[Any]:
    weights = random_model(seed, vocabulary=rows, heads=1)
    return LanguageModel(model=weights, tokenizer=tokenizer)


def opening(tokenizer: Tokenizer[Any], **how: Any) -> Request:
    """A request whose prompt is spelled in letters, as every model has these."""
    prompt = [tokenizer.vocabulary.id_of[bytes([byte])] for byte in PROMPT]
    return Request(Prompt(target=prompt), **{"max_tokens": TOKENS, **how})


def knowing(plain: list[int]) -> dict[str, Any]:
    """Sources that know a part of the output, and ids that no cut model has besides."""
    entries: dict[Any, Any] = {}
    for i in range(len(plain) - 1):
        right = plain[i + 1]
        entries[plain[i],] = ((right if i % 3 else IDS - 1,), 0.9)
        entries[plain[i], IDS - 1] = ((right,), 0.9)
    keys = keys_of(np.array(plain, dtype=np.uint64))[0]
    following = np.array([*plain[1:], 0], dtype=np.uint32)[:, None]
    ids = np.concatenate([np.full_like(following, IDS - 2), following], axis=1)
    codes = codes_of(np.log(np.array([[0.7, 0.2]])).repeat(len(ids), axis=0))
    _, first = np.unique(keys, return_index=True)
    store = OutputStore()
    store.add(list(plain[3:]))  # type: ignore[misc]
    others = {(plain[i],): (plain[i + 1], IDS - 3) for i in range(0, len(plain) - 1, 3)}
    return {
        "dictionary": Dictionaries({SOURCE: table_of(entries, IDS, others=others)}),
        "outputs": (store.text,),
        "known_rows": LogitRows(keys[first], ids[first], codes[first]),
    }


@pytest.fixture(scope="module")
def plainly(tokenizers: list[Tokenizer[Any]]) -> Callable[[int, str], list[int]]:
    """What a target of so many rows emits by itself."""

    @cache
    def emit(rows: int, sampling: str) -> list[int]:
        target = model(tokenizers[0], rows)
        decoder = decoder_of((target, None), method="plain")
        return emitted(Generation(decoder, opening(tokenizers[0], sampler=SAMPLINGS[sampling])))

    return emit


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("target", "sampling"),
    [("cut", "greedy"), ("cut", "sampled"), ("cut", "processed"), ("padded", "sampled")],
)
def test_nothing_is_proposed_that_the_model_lacks_and_nothing_is_lost(
    tokenizers: list[Tokenizer[Any]],
    plainly: Callable[[int, str], list[int]],
    target: str,
    sampling: str,
    method: str,
) -> None:
    rows, plain = TARGETS[target], plainly(TARGETS[target], sampling)
    ours, how, draft = model(tokenizers[0], rows), METHODS[method], None
    if "translation" in how:
        draft = model(tokenizers[method != "none"], DRAFTS[target], seed=1)
    decoder = decoder_of((ours, draft), **how, **knowing(plain))
    if method == "drafter":
        decoder = replace(decoder, drafter=random_drafter(ours.model))
    run = Generation(decoder, opening(tokenizers[0], sampler=SAMPLINGS[sampling]))
    assert emitted(run) == plain
    assert any(one.tree for one in run.rounds)
    assert all(token < rows for one in run.rounds for token in one.tree.ids)
    assert sum(one.accepted for one in run.rounds) > 2 or not how["method"].startswith("dict")


@pytest.mark.parametrize("method", ["plain", "hybrid"])
def test_a_grammar_is_followed_with_the_ids_that_the_model_has(
    tokenizers: list[Tokenizer[Any]], method: str
) -> None:
    """The canonical encoding of what the grammar forces needs ids that are cut off."""
    text = " ma kota, a kot ma"
    assert max(tokenizers[0].encode(text)) >= TARGETS["cut"]
    ours = replace(model(tokenizers[0], TARGETS["cut"]), stop_ids=frozenset({0, IDS - 1}))
    decoder = decoder_of((ours, None), method=method)
    run = Generation(decoder, opening(tokenizers[0], max_tokens=40, grammar=Grammar.choice([text])))
    ids = emitted(run)
    assert tokenizers[0].decode(ids[:-1]) == text
    assert ids[-1] == 0


def test_a_prompt_with_ids_that_the_model_lacks_is_refused(
    tokenizers: list[Tokenizer[Any]],
) -> None:
    decoder = decoder_of((model(tokenizers[0], 270), None), method="plain")
    with pytest.raises(UsageError, match=r"prompt\[1\] is 270, but .* from 0 to 269"):
        Generation(decoder, Request(Prompt(target=[TargetId(5), TargetId(270)])))


def test_of_the_rows_of_a_table_those_are_stored_that_the_model_can_meet() -> None:
    keys = keys_of(np.array([7, 8 << ID_BITS | 7, 7 << 2 * ID_BITS | 9], dtype=np.uint64))
    ids = np.array([[8, 2, 3]] * 9, dtype=np.uint32)
    codes = np.array([[200, 150, 100]] * 9, dtype=np.uint8)
    kept = LogitRows(keys.reshape(-1), ids, codes).within(8)
    assert sorted(kept.keys) == sorted([*keys[0][[0, 1]], keys[1][0], keys[2][0]])
    assert kept.ids.tolist() == [[2, 3, 0]] * 4
    assert kept.codes.tolist() == [[150, 100, 0]] * 4
