"""Which ids an alignment calls frequent, and how it keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tables import bundle_of
from small_tokenizers import write_tokenizer
from tokenizer_files import character_document
from written_tables import write_bundle

from tokalign.build.alignment import build_alignment, frequent_ids
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
from tokalign.build.pack import build_pack
from tokalign.errors import BundleError
from tokalign.storage import sample_text
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer[Any]:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, vocabulary_size=600)
    return read_tokenizer(folder)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It knows one word."""
    folder = tmp_path_factory.mktemp("pack")
    text = folder / "text.txt"
    text.write_text("kota kota kota kota\n" * 50, encoding="utf-8")
    path = folder / "pl.pack.tok"
    write_bundle(path, build_pack(Corpus([text]), BackoffOptions(), language="pl"))
    return path


def test_they_are_those_of_the_words_and_of_single_bytes(
    tokenizer: Tokenizer[Any], pack: Path
) -> None:
    found = {*frequent_ids(tokenizer, [pack]).tolist()}
    tokens = tokenizer.vocabulary.tokens
    assert {*tokenizer.encode(" kota kota")} <= found
    assert {i for i, token in enumerate(tokens) if len(token) == 1} <= found
    assert tokenizer.vocabulary.roles.eos <= found
    words = {i for i in found if len(tokens[i]) > 1}
    assert 0 < len(words) < 12


def test_a_word_inside_a_text_has_no_dummy_prefix(pack: Path, tmp_path: Path) -> None:
    """With it, ` kota` would begin with the id of two spaces, and its own would be missing."""
    document = character_document()
    document["model"]["merges"].sort(key=["▁", "▁"].__ne__)  # merged before all others
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    llama = read_tokenizer(tmp_path)
    assert llama.encode("kota kota") == 2 * llama.encode("kota")
    words = {i for i in llama.encode("kota") if len(llama.vocabulary.tokens[i]) > 1}
    found = frequent_ids(llama, [pack]).tolist()
    assert {i for i in found if len(llama.vocabulary.tokens[i]) > 1} == words


def test_most_of_a_text_in_a_language_that_was_counted_has_them(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    text = sample_text("pl")
    path = tmp_path / "pl.pack.tok"
    write_bundle(path, build_pack(Corpus([text]), BackoffOptions(), language="pl"))
    found = frequent_ids(tokenizer, [path])
    ids = tokenizer.encode(text.read_text("utf-8"))
    assert np.isin(ids, found).mean() > 0.95


def test_an_alignment_keeps_them(tokenizer: Tokenizer[Any], pack: Path) -> None:
    bundle = build_alignment(tokenizer, tokenizer, packs={"pl": pack})
    tokens = tokenizer.vocabulary.tokens
    kept = Alignment.from_bundle(bundle, draft=tokens, target_size=len(tokens)).frequent
    assert kept is not None
    assert np.array_equal(kept, frequent_ids(tokenizer, [pack]))
    assert Alignment.from_bundle(build_alignment(tokenizer, tokenizer)).frequent is None


def test_ids_beyond_the_vocabulary_and_lists_of_another_size_are_refused(
    tokenizer: Tokenizer[Any], pack: Path
) -> None:
    sections = {**build_alignment(tokenizer, tokenizer, packs={"pl": pack}).sections}
    bits = bytes(sections["frequent.bits"])
    size = len(tokenizer.vocabulary)
    forged = [bits[:-1], bits + b"\0"]
    if size % 8:
        forged.append(bits[:-1] + b"\xff")
    for changed in forged:
        with pytest.raises(BundleError, match=r"frequent\.bits"):
            Alignment.from_bundle(bundle_of({**sections, "frequent.bits": changed}))
