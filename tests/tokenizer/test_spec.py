"""The fingerprint: everything that decides how the bytes of a text are encoded, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_tokenizers import of_merges

from tokalign.tokenizer.fingerprint import fingerprint_of
from tokalign.tokenizer.note import read_note, write_note
from tokalign.tokenizer.roles import is_control
from tokalign.tokenizer.spec import Markup, TokenizerSpec, as_triples, byte_level
from tokalign.tokenizer.tokenizer import Tokenizer

CHANGES: dict[str, Callable[[TokenizerSpec], dict[str, Any]]] = {
    "another way to make a token": lambda spec: {
        "triples": as_triples([*spec.triples.tolist()[:-1], [0, 4, 5]])
    },
    "the order of merges": lambda spec: {"triples": spec.triples[::-1]},
    "a token less": lambda spec: {"tokens": (*spec.tokens[:-1], b"")},
    "an added token in text": lambda _: {"text_tokens": frozenset({5})},
    "the unknown token": lambda _: {"unknown": 2},
    "unknown ones together": lambda _: {"unknown": 1, "fuses_unknown": True},
    "whole pieces": lambda _: {"ignore_merges": True},
    "the dummy prefix": lambda _: {"dummy_prefix": True},
    "the normalizer": lambda _: {"normalizer": ({"type": "NFC"},)},
    "the pre-tokenizer": lambda _: {"pre_tokenizer": byte_level("a+")},
    "byte fallback": lambda _: {"fallback": frozenset({2})},
}


@pytest.fixture
def spec() -> TokenizerSpec:
    """a, b, c and ab, bc, abc, which is made of ab and c; a character that is unknown is c."""
    made = of_merges(b"abc", [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c")]).spec
    return replace(made, unknown=1)


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_an_encoding_changes_the_fingerprint(name: str, spec: TokenizerSpec) -> None:
    assert fingerprint_of(replace(spec, **CHANGES[name](spec))) != fingerprint_of(spec)


def test_special_tokens_and_what_is_around_a_text_do_not(spec: TokenizerSpec) -> None:
    more = replace(spec, tokens=(*spec.tokens, b""), specials={6: "<s>"}, opening=(6,))
    assert fingerprint_of(more) == fingerprint_of(spec)


def test_every_way_to_make_a_token_and_the_one_that_is_taken_are_the_same(
    spec: TokenizerSpec,
) -> None:
    every = as_triples([*spec.triples.tolist(), [0, 4, 5]])
    assert fingerprint_of(replace(spec, triples=every)) == fingerprint_of(spec)


def test_a_note_says_all_that_was_read(spec: TokenizerSpec, tmp_path: Any) -> None:
    whole = replace(
        spec,
        specials={6: "<s>", 7: "</s>"},
        markup=Markup.LIBRARY,
        opening=(6,),
        closing=(7,),
        document=b"{}",
        normalizer=({"type": "NFC"},),
        pre_tokenizer=byte_level("a+"),
    )
    write_note(tmp_path / "note", Tokenizer(whole))
    noted = read_note(tmp_path / "note")
    assert noted is not None
    assert noted.fingerprint == fingerprint_of(whole)
    kept = noted.spec
    assert kept.triples.tolist() == whole.triples.tolist()
    for name, value in vars(whole).items():
        if name != "triples":
            assert getattr(kept, name) == value, name


def test_a_note_that_is_broken_counts_as_none(spec: TokenizerSpec, tmp_path: Any) -> None:
    path = tmp_path / "note"
    assert read_note(path) is None
    write_note(path, Tokenizer(spec))
    data = path.read_bytes()
    for broken in (b"", data[:-1], data[:40], data[:50] + b"?" + data[51:]):
        path.write_bytes(broken)
        assert read_note(path) is None


def test_markup_is_control_wherever_it_stands() -> None:
    for spelling in ("<tool_call>", "[INST]", "<pad>", "<|im_end|>", "<think>"):
        assert is_control(spelling, special=False, in_vocabulary=True)
    assert is_control("<td>", special=False, in_vocabulary=False)
    assert is_control("kot", special=True, in_vocabulary=True)
    for spelling in ("<td>", "</s>", "\n\n", "kot", "<>", "[", "  "):
        assert not is_control(spelling, special=False, in_vocabulary=True)
