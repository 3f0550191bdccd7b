"""One tokenizer model for all file formats: bytes survive, encoders agree, fingerprints match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from polish import texts
from tokenizer_files import WORDS, tekken_document
from tokenizers.normalizers import NFC

from tokalign.names.registry import resolve_tokenizer
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spelling import SPACE_MARK
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def nemo() -> Tokenizer[Any]:
    return resolve_tokenizer("mistral-nemo").tokenizer


@pytest.fixture(scope="module", params=["bielik", "llama", "qwen", "nemo"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer[Any]:
    found: Tokenizer[Any] = request.getfixturevalue(request.param)
    return found


@given(text=texts)
@settings(max_examples=300)
def test_bytes_of_an_encoding_are_the_bytes_of_the_text(
    tokenizer: Tokenizer[Any], text: str
) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.vocabulary.bytes_of(ids) == tokenizer.text_bytes(text)
    beyond = len(tokenizer.vocabulary.tokens)
    assert tokenizer.vocabulary.bytes_of([beyond, *ids]) == tokenizer.text_bytes(text)
    prefix = b" " if tokenizer.spec.dummy_prefix and text else b""
    composed = NFC().normalize_str(text) if tokenizer.spec.normalizer else text
    if tokenizer.spec.by_characters:  # the library takes the mark itself for a space, too
        composed = composed.replace(SPACE_MARK, " ")
    assert tokenizer.text_bytes(text) == prefix + composed.encode()
    assert tokenizer.decode(ids) == composed


@given(text=texts)
@settings(max_examples=300)
def test_our_encoder_and_the_library_agree(tokenizer: Tokenizer[Any], text: str) -> None:
    assert tokenizer.bpe.encode(tokenizer.text_bytes(text)) == tokenizer.encode(text)
    assert tokenizer.encode_batch([text, "i"]) == [tokenizer.encode(text), tokenizer.encode("i")]


def test_every_ordinary_token_has_bytes_and_no_special_token_has(tokenizer: Tokenizer[Any]) -> None:
    vocabulary = tokenizer.vocabulary
    special = {i for i, token in enumerate(vocabulary.tokens) if not token}
    assert special == set(vocabulary.specials)


def test_literal_pieces_win_over_byte_fallback(bielik: Tokenizer[Any]) -> None:
    vocabulary = bielik.vocabulary
    assert len(vocabulary.fallback) == 256
    assert vocabulary.id_of[b"A"] not in vocabulary.fallback
    assert vocabulary.id_of[b"\x00"] in vocabulary.fallback


def test_roles(bielik: Tokenizer[Any], llama: Tokenizer[Any], qwen: Tokenizer[Any]) -> None:
    for tokenizer, role, expected in (
        (bielik, "bos", "<s>"),
        (bielik, "turn_end", "<|im_end|>"),
        (llama, "turn_start", "<|start_header_id|>"),
        (llama, "turn_end", "<|eot_id|>"),
        (qwen, "bos", None),
        (qwen, "turn_end", "<|im_end|>"),
    ):
        found = getattr(tokenizer.vocabulary.roles, role)
        assert tokenizer.vocabulary.specials.get(found) == expected
    assert bielik.vocabulary.roles.eos == {2, 32001}


def test_special_tokens_are_parsed_only_on_request(bielik: Tokenizer[Any]) -> None:
    text = "<|im_start|>user\nAla<|im_end|>"
    assert 32000 not in bielik.encode(text)
    ids = bielik.encode(text, specials=True)
    assert ids[0] == 32000
    assert ids[-1] == 32001
    assert bielik.vocabulary.bytes_of(ids) == b" user\nAla"


@pytest.mark.parametrize(
    ("official", "folder"),
    [
        *[("bielik", "bielik-11b"), ("llama", "llama3.2"), ("qwen", "qwen2.5")],
        ("polish-spm-32k/tokenizer.model", "polish-spm-32k"),
    ],
)
@pytest.mark.slow
def test_the_same_tokenizer_has_one_fingerprint_whatever_file_it_came_from(
    official: str, folder: str, shared_data: Path, request: pytest.FixtureRequest
) -> None:
    files, is_file = shared_data / "tokenizers", "/" in official
    expected: Tokenizer[Any]
    expected = read_tokenizer(files / official) if is_file else request.getfixturevalue(official)
    from_json: Tokenizer[Any] = read_tokenizer(files / folder / "tokenizer.json")
    assert from_json.fingerprint == expected.fingerprint
    assert from_json.spec.specials == expected.spec.specials
    assert from_json.spec.roles == expected.spec.roles


def test_fingerprints_are_those_that_tables_were_built_for(
    bielik: Tokenizer[Any], llama: Tokenizer[Any], qwen: Tokenizer[Any]
) -> None:
    """Another fingerprint makes every table of a tokenizer useless, here and at its users."""
    assert bielik.fingerprint.startswith("1356971e7ac1b002")
    assert llama.fingerprint.startswith("b957d4bd8cf54557")
    assert qwen.fingerprint.startswith("d4ac0a0ba31b80cd")


def test_special_tokens_come_first_and_ranks_after_them(nemo: Tokenizer[Any]) -> None:
    vocabulary = nemo.vocabulary
    assert len(vocabulary) == 131_072
    assert set(vocabulary.specials) == set(range(1000))
    assert vocabulary.tokens[1000:1256] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.roles.bos == 1
    assert vocabulary.roles.eos == {2}


def test_ranks_that_a_tekken_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    document = tekken_document(special_tokens=[{"rank": 2, "token_str": "[END]"}])
    document["config"]["default_vocab_size"] -= 1
    (tmp_path / "tekken.json").write_text(json.dumps(document))
    tokenizer: Tokenizer[Any] = read_tokenizer(tmp_path)
    assert len(tokenizer.vocabulary) == 3 + len(document["vocab"]) - 1
    assert tokenizer.encode("tak") == [3 + 256 + WORDS.index("tak")]
    assert tokenizer.encode("ok") == [3 + ord("o"), 3 + ord("k")]
    assert tokenizer.vocabulary.specials == {0: "<unk>", 1: "<s>", 2: "[END]"}
