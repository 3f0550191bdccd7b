"""The check on load: it finds whatever a reader could get wrong, and is made once per file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checked import check
from tokenizer_files import (
    RANK_SUPPLEMENT,
    added,
    byte_level,
    byte_level_document,
    character_document,
    library_tokenizer,
    rank_lines,
    sentencepiece_model,
)

from tokalign.errors import VocabularyError
from tokalign.tokenizer.check_texts import plain_texts, texts_with_specials
from tokalign.tokenizer.files import TokenizerFile, open_tokenizer_file, read_spec
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level, TokenizerSpec
from tokalign.tokenizer.spec import byte_level as split_bytes
from tokalign.tokenizer.tokenizer import Tokenizer


def opened(path: Path, content: bytes) -> TokenizerFile:
    path.write_bytes(content)
    supplement = RANK_SUPPLEMENT if path.suffix == ".tiktoken" else None
    return open_tokenizer_file(path, supplement)


JSON = "tokenizer.json"
MARK = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
PREFIXED = byte_level(add_prefix_space=True)


def in_json(make: Callable[..., dict[str, Any]], **changes: Any) -> tuple[str, Callable[[], bytes]]:
    return JSON, lambda: json.dumps(make(**changes)).encode()


FILES = {
    "bytes": in_json(byte_level_document),
    "NFC": in_json(byte_level_document, normalizer={"type": "NFC"}),
    "prefixed": in_json(byte_level_document, pre_tokenizer=PREFIXED),
    "characters": in_json(character_document),
    "once": in_json(character_document, normalizer=None, pre_tokenizer=MARK),
    "SentencePiece": ("tokenizer.model", lambda: sentencepiece_model().SerializeToString()),
    "ranks": ("x.tiktoken", lambda: "\n".join(rank_lines()).encode()),
}


def test_what_macos_keeps_beside_a_file_is_not_taken_for_it(tmp_path: Path) -> None:
    """On disks of other systems it keeps attributes of NAME in `._NAME`."""
    (tmp_path / "._x.tiktoken").write_bytes(b"\0\x05\x16\x07")
    (tmp_path / "x.tiktoken").write_bytes(FILES["ranks"][1]())
    file = open_tokenizer_file(tmp_path, RANK_SUPPLEMENT)
    assert (file.path.name, [*file.files]) == ("x.tiktoken", ["x.tiktoken"])


def two_ids_swapped(spec: TokenizerSpec) -> dict[str, Any]:
    *tokens, third, second, last = spec.tokens
    return {"tokens": [*tokens, second, third, last], "triples": []}


MISREADINGS: dict[str, tuple[str, Callable[[TokenizerSpec], dict[str, Any]]]] = {
    "last merge": ("bytes characters SentencePiece", lambda spec: {"triples": spec.triples[:-1]}),
    "order of merges": ("bytes SentencePiece", lambda spec: {"triples": spec.triples[::-1]}),
    "prefix": (
        "bytes characters SentencePiece",
        lambda spec: {"dummy_prefix": not spec.dummy_prefix},
    ),
    "expression": ("bytes", lambda _: {"pre_tokenizer": split_bytes("[^o]+o?|o+")}),
    "ids": ("bytes characters", two_ids_swapped),
    "normal form": ("NFC", lambda _: {"normalizer": ()}),
    "prefix again": ("once", lambda _: {"prefix_once": False}),
    "prefix and space": ("once prefixed", lambda _: {"prefix_unless_space": False}),
    "special": ("bytes", lambda spec: {"specials": dict.fromkeys(spec.specials, "<else>")}),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for name in MISREADINGS for kind in MISREADINGS[name][0].split()],
)
def test_a_reader_that_is_wrong_is_found(kind: str, name: str, tmp_path: Path) -> None:
    (file_name, content), misread = FILES[kind], MISREADINGS[name][1]
    file = opened(tmp_path / file_name, content())
    spec = read_spec(file)
    check(Tokenizer[Any](spec), file)
    with pytest.raises(VocabularyError, match=r"otherwise|not those"):
        check(Tokenizer[Any](replace(spec, **misread(spec))), file)


def test_the_texts_are_many_and_always_the_same(tmp_path: Path) -> None:
    spec = read_spec(opened(tmp_path / JSON, json.dumps(byte_level_document()).encode()))
    texts = plain_texts(spec)
    assert texts == plain_texts(spec)
    assert len(set(texts)) > 400
    assert "</s>" in texts_with_specials(spec)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache where passed checks are noted."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "checked-tokenizers"


def test_a_passed_check_is_noted_and_a_failed_one_is_not(notes: Path, tmp_path: Path) -> None:
    path = tmp_path / JSON
    document = byte_level_document()
    path.write_text(json.dumps(document))
    for _ in range(2):
        read_tokenizer(path)
        assert len(list(notes.iterdir())) == 1
    path.write_text(json.dumps(document, indent=1))
    read_tokenizer(path)
    assert len(list(notes.iterdir())) == 2
    path.write_text(json.dumps(document | {"version": "9"}))
    with pytest.raises(VocabularyError, match="Cannot instantiate"):
        read_tokenizer(path)
    assert len(list(notes.iterdir())) == 2


def test_a_file_that_was_checked_is_read_without_its_library(notes: Path, tmp_path: Path) -> None:
    path = tmp_path / JSON
    path.write_text(json.dumps(byte_level_document()))
    program = (
        "import sys\nfrom tokalign.tokenizer.self_check import read_tokenizer\n"
        f"read_tokenizer({str(path)!r})\nprint('tokenizers' in sys.modules)"
    )
    run = [sys.executable, "-c", program]
    answers = [subprocess.check_output(run, text=True).strip() for _ in range(2)]
    assert answers == ["True", "False"]


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "file"))
    (tmp_path / JSON).write_text(json.dumps(byte_level_document()))
    assert read_tokenizer(tmp_path).encode("kot") == [257]


def unigram(path: Path, *, split: bool = True, **scores: float) -> Path:
    """A Unigram model of these tokens after `<unk>` and a space."""
    listed = [["<unk>", 0.0], ["▁", -2.1], *map(list, scores.items())]
    document = character_document(
        model={"type": "Unigram", "unk_id": 0, "vocab": listed},
        added_tokens=[added(0, "<unk>", special=True), added(len(listed), "kot")],
        normalizer=None,
        pre_tokenizer={**MARK, "prepend_scheme": "always", "split": split},
    )
    (path / JSON).write_text(json.dumps(document))
    return path / JSON


def test_an_unknown_character_forges_no_token(tmp_path: Path) -> None:
    """A Unigram model that has no `<` makes `<unk>` of it, as of every such character."""
    tokenizer = read_tokenizer(unigram(tmp_path, a=-2.0, b=-2.0))
    assert tokenizer.level is Level.BY_TEXT
    assert tokenizer.encode("a ab<u a") == [1, 2, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize("split", [False, True])
def test_of_equally_probable_encodings_the_library_chooses(tmp_path: Path, split: bool) -> None:
    """`aaaaa` is `aaa|aa` or `aa|aaa`, by how the probability of what is before it is rounded."""
    scores = {"a": -2.3, "aa": -3.7, "aaa": -5.9, "b": -1.9, "c": -3.3}
    file = unigram(tmp_path, split=split, **scores)
    tokenizer, library = read_tokenizer(file), library_tokenizer(file)
    assert tokenizer.level is Level.BY_TEXT
    for text in (
        f"{'b' * i}{space}c {'a' * k}" for i in range(9) for k in (5, 9) for space in " _"
    ):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.encoder.encode(tokenizer.text_bytes(text)) == ids
