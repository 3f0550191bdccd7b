"""However a text is packed, the same paragraphs come out; what cannot be read is reported."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build import corpus, sources, text_files
from tokalign.build.corpus import Corpus, count_ids
from tokalign.errors import CorpusError
from tokalign.tables.bundle import Bundle, decode_bundle, encode_bundle

PARAGRAPHS = ["Zażółć gęślą jaźń.", "Drugi akapit, dłuższy nieco.", "Trzeci."]
TEXT = "\n".join(PARAGRAPHS).encode() + b"\n"
JSON = "\n".join(json.dumps({"text": p}, ensure_ascii=False) for p in PARAGRAPHS).encode()


gz = partial(gzip.compress, mtime=0)


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", TEXT),
        ("a.txt.gz", gz(TEXT)),
        ("a.txt.zst", zstandard.compress(TEXT)),
        ("a.jsonl", JSON),
        ("a.jsonl.gz", gz(JSON)),
        ("a.jsonl.zst", zstandard.compress(JSON)),
        ("frames.txt.zst", zstandard.compress(TEXT[:20]) + zstandard.compress(TEXT[20:])),
        ("members.txt.gz", gz(TEXT[:20]) + gz(TEXT[20:])),
        ("blank.txt", TEXT.replace(b"\n", b"\n\n  \n")),
        ("open-end.txt", TEXT.rstrip()),
        ("document.jsonl", json.dumps({"text": TEXT.decode()}).encode()),
    ],
)
def test_every_kind_of_file_gives_the_same_paragraphs(
    tmp_path: Path, name: str, data: bytes
) -> None:
    corpus, done = Corpus([written(tmp_path, name, data)]), list[int]()
    assert list(corpus.lines(done.append)) == PARAGRAPHS
    assert sum(done) == corpus.size
    [stamp] = corpus.stamp["files"]
    assert stamp["name"] == name
    assert stamp["bytes"] == len(data)
    assert stamp["sha256"] == hashlib.sha256(data).hexdigest()
    assert (stamp["lines"], stamp["skipped"]) == (3, 0)


@given(st.lists(st.sampled_from(["a", "ż\n", "\n", "  słowo 🐟 "]), min_size=1), st.integers(1, 9))
def test_paragraphs_do_not_depend_on_where_chunks_end(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], size: int
) -> None:
    text = "x" + "".join(parts)
    path = written(tmp_path_factory.mktemp("corpus"), "a.txt", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_CHUNK", size)
        lines = list(Corpus([path]).lines())
    assert lines == [line for line in text.split("\n") if line.strip()]


def test_what_was_made_of_a_corpus_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    """One of as many bytes, or another field of the same file."""
    path = written(tmp_path, "a.jsonl", b'{"text": "ja", "answer": "ty"}')
    first = Corpus([path]).identity
    assert Corpus([path]).identity == first
    assert Corpus([path], field="answer").identity != first
    written(tmp_path, "a.jsonl", b'{"text": "on", "answer": "ty"}')
    assert Corpus([path]).identity != first


def test_files_come_in_the_order_of_their_names_wherever_they_are(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    b, a = written(tmp_path / "x", "b.txt", b"b\n"), written(tmp_path / "y", "a.txt", b"a\n")
    corpus = Corpus([b, a])
    assert list(corpus.lines()) == ["a", "b"]
    assert [stamp["name"] for stamp in corpus.stamp["files"]] == ["a.txt", "b.txt"]
    assert str(tmp_path) not in str(corpus.stamp)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_field_that_the_first_object_lacks_is_an_error_that_names_its_fields(
    tmp_path: Path, name: str
) -> None:
    data = b'{"id": 1, "body": "jeden"}\n{"id": 2, "body": "dwa"}\n' + JSON
    path = written(tmp_path, name, gz(data) if name.endswith("gz") else data)
    problems: list[CorpusError] = []
    with pytest.raises(CorpusError, match=r'no field "text".*: id, body; .*--field'):
        list(Corpus([path], report=problems.append).lines())
    assert not problems
    assert list(Corpus([path], field="body", report=problems.append).lines()) == ["jeden", "dwa"]
    assert len(problems) == 3


def test_ids_are_counted_with_line_ends_and_those_beyond_a_model_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bytes:
        def encode(self, text: str) -> list[int]:
            return [*text.encode()]

    text = tmp_path / "a.txt"
    text.write_text("ab\n\nbz\n" * 60_000)
    tokenizer: Any = Bytes()
    found = count_ids(Corpus([text]), tokenizer, ord("c"))
    assert len(found) == ord("c")
    assert (found[ord("a")], found[ord("b")], found[ord("\n")]) == (60_000, 120_000, 120_000)
    assert found.sum() == 300_000
    text.write_text("a\n" * 100)
    (tmp_path / "b.txt").write_text("b\n" * 100)
    monkeypatch.setattr(corpus, "_COUNTED", 10)
    found = count_ids(Corpus([text, tmp_path / "b.txt"]), tokenizer, 256)
    assert 5 <= found[ord("a")] == found[ord("b")] < 100


def test_two_files_of_one_name_are_refused_before_reading(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    twice = [written(tmp_path, "a.txt", TEXT), written(tmp_path / "x", "a.txt", TEXT)]
    with pytest.raises(CorpusError, match="this name"):
        Corpus(twice)


@pytest.mark.parametrize("weight", [0, -1, 0.0005, 10_001, 1e18, float("inf"), float("nan")])
def test_a_weight_that_counts_cannot_hold_is_refused(tmp_path: Path, weight: float) -> None:
    with pytest.raises(CorpusError, match="a weight has to be over 0 and at most 10,000"):
        Corpus([written(tmp_path, "a.txt", TEXT)], weights={"a.txt": weight})
    with pytest.raises(CorpusError, match=r"the corpus has only a\.txt"):
        Corpus([tmp_path / "a.txt"], weights={"b.txt": weight})


def test_a_weight_that_is_an_int_makes_no_table_that_cannot_be_read(tmp_path: Path) -> None:
    """A header is refused if it is not written as its types are."""
    counted = Corpus([written(tmp_path, "a.txt", TEXT)], weights={"a.txt": 2})
    assert list(counted.lines()) == PARAGRAPHS
    table = Bundle(kind="pack", fingerprints={}, corpus=counted.stamp, sections={})
    assert decode_bundle(encode_bundle(table)).corpus == counted.stamp


def test_more_files_than_a_header_can_name_are_refused_before_they_are_read(tmp_path: Path) -> None:
    names = [f"część {number}" * 20 + ".txt" for number in range(9)]
    for name in names:
        (tmp_path / name).write_text("Ala ma kota.\n")
    corpus = Corpus([tmp_path / name for name in names])
    list(corpus.lines())
    size = len(msgpack.packb(corpus.stamp["files"]))
    corpus.require_room(size)
    with pytest.raises(CorpusError, match=r"and 9 files take [\d,]+ bytes .*join them"):
        corpus.require_room(size - 1)


@given(st.lists(st.text("ab", min_size=1, max_size=14), min_size=1), st.integers(1, 8))
def test_a_long_paragraph_is_cut_at_spaces_and_only_spaces_are_lost(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], longest: int
) -> None:
    path = written(tmp_path_factory.mktemp("corpus"), "a.txt", " ".join(words).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "LONGEST_PARAGRAPH", longest)
        parts = list(Corpus([path]).lines())
    assert all(0 < len(part) <= longest for part in parts)
    assert "".join("".join(parts).split()) == "".join(words)
    rest = " ".join(words)
    for part in parts:
        assert rest.startswith(part)
        rest = rest[len(part) :]
        if rest.startswith(" "):  # the next word would not have fitted, too
            rest = rest[1:]
            assert len(part) + 1 + len(rest.split(" ")[0]) > longest
        elif rest:  # a word that is longer than a paragraph may be
            assert " " not in part
            assert len(part) == longest


def test_a_file_in_another_encoding_is_refused_before_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Zażółć.\n", encoding="utf-8")
    lines = "\n" * 200 + "Zażółć gęślą jaźń.\n" * 20_000  # more than are read at once
    (tmp_path / "z.txt").write_text(lines, encoding="cp1250")
    with pytest.raises(CorpusError, match=r"z\.txt: most of its beginning is no text"):
        Corpus([tmp_path / "a.txt", tmp_path / "z.txt"])
