"""Mistral NeMo's vocabulary file: its ids, and the laws that hold for every tokenizer."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from polish import texts

from tokalign.names.registry import resolve_tokenizer
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def nemo() -> Tokenizer[Any]:
    return resolve_tokenizer("mistral-nemo").tokenizer


def test_special_tokens_come_first_and_ranks_after_them(nemo: Tokenizer[Any]) -> None:
    vocabulary = nemo.vocabulary
    assert len(vocabulary) == 131_072
    assert set(vocabulary.specials) == set(range(1000))
    assert vocabulary.tokens[1000:1256] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.roles.bos == 1
    assert vocabulary.roles.eos == {2}


@given(text=texts)
@settings(max_examples=100)
def test_both_encoders_agree_and_keep_the_bytes(nemo: Tokenizer[Any], text: str) -> None:
    ids = nemo.encode(text)
    assert nemo.vocabulary.bytes_of(ids) == text.encode()
    assert nemo.bpe.encode(text.encode()) == ids


def document(**changes: Any) -> dict[str, Any]:
    words = [*(bytes([byte]) for byte in range(256)), b"ab", b"abc", b"left out"]
    entries = [{"rank": i, "token_bytes": b64encode(w).decode()} for i, w in enumerate(words)]
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 261, "default_num_special_tokens": 3}
    return {"config": config, "vocab": entries, **changes}


def test_ranks_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(document()))
    tokenizer: Tokenizer[Any] = read_tokenizer(tmp_path)
    assert len(tokenizer.vocabulary) == 261
    assert tokenizer.encode("abc") == [260]
    assert tokenizer.vocabulary.specials == {0: "<unk>", 1: "<s>", 2: "</s>"}


def test_listed_special_tokens_are_used(tmp_path: Path) -> None:
    listed = [{"rank": 2, "token_str": "[END]"}]
    (tmp_path / "tekken.json").write_text(json.dumps(document(special_tokens=listed)))
    assert read_tokenizer(tmp_path).vocabulary.specials[2] == "[END]"
