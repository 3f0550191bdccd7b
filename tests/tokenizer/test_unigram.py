"""A Unigram piece that grows is encoded as the library encodes all of it, by its end alone."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small_families import family_document
from tokenizer_files import BYTES, added, byte_level, byte_level_document, library_tokenizer

from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.spelling import byte_alphabet
from tokalign.tokenizer.tokenizer import Tokenizer

PARTS = (
    "Zażółć",
    " gęślą",
    "jaźń",
    "aaaa",
    "a",
    "北京",
    "漢字",
    "カナ",
    " ",
    "  ",
    "12",
    "🐟",
    "...",
    "qq",
)


def document(kind: str) -> dict[str, Any]:
    """Scores are whole numbers, so that many encodings are equally probable."""
    if kind == "bytes":
        pieces = [*byte_alphabet(), "aa", "aaa", "å¤", "æ¼¢"]
        return byte_level_document(
            pre_tokenizer=byte_level(use_regex=False),
            added_tokens=[],
            model={"type": "Unigram", "unk_id": 0, "vocab": [[p, -len(p)] for p in pieces]},
        )
    made: dict[str, Any] = json.loads(json.dumps(family_document("Unigram")))
    model = made["model"]
    model["vocab"] = [[piece, round(score)] for piece, score in model["vocab"]]
    made["normalizer"] = None
    made["pre_tokenizer"]["split"] = kind == "words"
    if kind == "fallback":
        model["vocab"] += [[byte, -20.0] for byte in BYTES]
        model["byte_fallback"] = True
    return made


@pytest.fixture(params=["words", "whole", "fallback", "bytes"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document(request.param)))
    return path


def test_a_piece_grows_as_the_library_encodes_it(file: Path) -> None:
    tokenizer: Tokenizer[Any] = read_tokenizer(file)
    assert tokenizer.level is Level.BY_TEXT
    library, draw = library_tokenizer(file), Random(4)
    for _ in range(60):
        text = "".join(draw.choices(PARTS, k=40))
        data, at = tokenizer.text_bytes(text), 0
        growing = IncrementalEncoder(tokenizer.encoder)
        while at < len(data):  # often within a character
            size = draw.choice((1, 2, 3, 30))
            growing.push(data[at : at + size])
            at += size
            if draw.random() < 0.1:
                assert growing.ids == tokenizer.encoder.encode(data[:at])
        assert growing.ids == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["whole", "bytes"])
def test_a_long_added_token_is_one_where_a_text_grows(kind: str, tmp_path: Path) -> None:
    made = json.loads(json.dumps(document(kind)))
    if kind != "bytes":
        made["pre_tokenizer"]["prepend_scheme"] = "never"
    listed = {piece for piece, _ in made["model"]["vocab"]}
    index = len(listed | {token["content"] for token in made["added_tokens"]})
    made["added_tokens"].append({**added(index, "-" * 70), "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    tokenizer: Tokenizer[Any] = read_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.level is Level.BY_TEXT
    growing, text = IncrementalEncoder(tokenizer.encoder), f"jaźń {'-' * 70}aa"
    for byte in tokenizer.text_bytes(text):
        growing.push(bytes([byte]))
    library = library_tokenizer(tmp_path / "tokenizer.json")
    assert growing.ids == library.encode(text, add_special_tokens=False).ids
    assert index in growing.ids


def test_what_is_no_text_grows_as_well(file: Path) -> None:
    tokenizer: Tokenizer[Any] = read_tokenizer(file)
    draw = Random(5)
    for _ in range(20):
        growing = IncrementalEncoder(tokenizer.encoder)
        for byte in draw.choices(b"\xc5\xbc\xff a\xe6\xbc\xa2", k=90):
            growing.push(bytes([byte]))
        assert growing.ids == tokenizer.encoder.encode(growing.text)


def test_the_beginning_of_a_long_piece_is_not_scored_again(file: Path) -> None:
    class Counted(dict[str, Any]):
        lookups = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.lookups += 1
            return super().get(key, default)

    encoder: Any = read_tokenizer(file).encoder
    growing = IncrementalEncoder[Any](encoder)
    growing.push("漢字カナ".encode() * 300)
    encoder._scored = scored = Counted(encoder._scored)
    growing.push("漢".encode())
    assert growing.ids == encoder.encode(growing.text)
    assert 0 < scored.lookups < 400
