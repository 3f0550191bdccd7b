"""Documents are found, but nothing that is hidden or secret; every kind becomes the same text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest
from documents import MEETING, write_pdf

from tokalign.build.documents import Rules, UnopenedError, find_documents, read_document, unwrap
from tokalign.errors import CorpusError, MissingAssetError, UsageError
from tokalign.storage import sample_text


def write(path: Path, text: str = "Notatka.\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(folder: Path, **rules: object) -> set[str]:
    found, _ = find_documents([folder], Rules(**rules))  # type: ignore[arg-type]
    return {os.path.relpath(file.path, folder) for file in found}


def test_documents_of_all_kinds_are_found_in_all_folders(tmp_path: Path) -> None:
    wanted = {"a.txt", "b.md", "in/c.html", "in/deep/D.PDF"}
    for name in (*wanted, "program.py", "photo.jpg", "in/table.csv"):
        write(tmp_path / name)
    assert names(tmp_path) == wanted


OF_PROGRAMS = (
    *("node_modules/left/README.md", "project/venv/lib/site-packages/pip/LICENSE.txt"),
    *("Library/Caches/a.html", "Library/Preferences/a.txt", "AppData/Local/a.txt"),
    *("src/CMakeLists.txt", "requirements-dev.txt"),
)


def test_what_programs_keep_is_left_alone(tmp_path: Path) -> None:
    kept = {"kept.txt", "Documents/Library/a.txt", "books/library/a.txt"}
    for name in (*kept, *OF_PROGRAMS):
        write(tmp_path / name)
    assert names(tmp_path) == kept


def test_links_are_not_followed_and_pipes_not_opened(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "private.txt")
    folder = write(tmp_path / "inside" / "kept.txt").parent
    (folder / "file.txt").symlink_to(tmp_path / "outside" / "private.txt")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    _, skipped = find_documents([folder], Rules())
    assert names(folder) == {"kept.txt"}
    assert skipped.counts["links"] == 3


def test_patterns_and_sizes_are_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokalign.build.documents.LARGEST_FILE", 10)
    for name in ("kept.txt", "Stare/a.txt", "b.draft.md", "large.txt"):
        write(tmp_path / name, "x" * (11 if name == "large.txt" else 10))
    assert names(tmp_path, exclude=("stare/", "*.DRAFT.md")) == {"kept.txt"}


@pytest.mark.parametrize("typed", ["NFC", "NFD"])
def test_a_pattern_fits_a_name_however_their_accents_are_written(
    tmp_path: Path, typed: Literal["NFC", "NFD"]
) -> None:
    write(tmp_path / "kept.txt")
    for form in ("NFC", "NFD"):
        write(tmp_path / normalize(form, "Różne") / f"{form}.txt")
    assert names(tmp_path, exclude=(normalize(typed, "różne/"),)) == {"kept.txt"}


def test_overlapping_folders_give_each_file_once(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt")
    found, _ = find_documents([tmp_path, tmp_path / "in", tmp_path], Rules())
    assert len(found) == 1


def test_a_folder_that_is_gone_is_an_error_and_not_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingAssetError, match=r"is not there; connect .*learn from \("):
        find_documents([tmp_path / "usb"], Rules())
    with pytest.raises(UsageError, match="is not a folder"):
        find_documents([write(tmp_path / "a.txt")], Rules())


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        *(("pl", encoding) for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1250", "iso8859-2")),
        *(("uk", encoding) for encoding in ("cp1251", "koi8-u", "iso8859-5", "cp866")),
        *((language, "cp1250") for language in ("cs", "hu", "sk")),
        *((language, "iso8859-2") for language in ("cs", "hu", "sk")),
        *(("lt", encoding) for encoding in ("cp1257", "iso8859-13")),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".html"])
def test_text_is_read_in_the_encodings_that_are_met(
    tmp_path: Path, language: str, encoding: str, suffix: str
) -> None:
    path, text = tmp_path / f"a{suffix}", sample_text(language).read_text("utf-8")
    data = text.encode(encoding, "ignore")
    path.write_bytes(data)
    assert read_document(path).split() == data.decode(encoding).split()


def test_a_text_of_no_known_encoding_is_refused(tmp_path: Path) -> None:
    """Not learned with a mark in the place of each letter that has an accent."""
    path = tmp_path / "a.txt"
    path.write_bytes(sample_text("cs").read_text("utf-8").encode("cp852", "ignore"))
    with pytest.raises(CorpusError, match=r"a\.txt: its encoding is not known; save it as UTF-8"):
        read_document(path)


@pytest.mark.parametrize("name", ["a.HTML", "a.txt"])
def test_html_is_read_as_a_browser_shows_it(tmp_path: Path, name: str) -> None:
    page = (
        '<html><head><meta charset="iso-8859-2"><style>p {margin: 0}</style></head><body>'
        f"<script>let tajne = 1</script><h1>Ogłoszenie</h1><p>{MEETING[:9]}<b>{MEETING[9:20]}</b>"
        f"{MEETING[20:]}</p><p>Jan&nbsp;&amp;&nbsp;Maria</p></body></html>"
    )
    (tmp_path / name).write_text(page, encoding="iso-8859-2")
    lines = read_document(tmp_path / name).split("\n")
    assert lines == ["Ogłoszenie", MEETING, "Jan\xa0&\xa0Maria"]


def test_pdf_lines_are_joined_to_paragraphs(tmp_path: Path) -> None:
    lines = [
        "Zebranie odbywa sie w kazdy wtorek miesiaca w sali",
        "konferencyjnej na parterze.",
        "Wstep wolny.",
    ]
    read = read_document(write_pdf(tmp_path / "a.pdf", lines))
    assert read == f"{lines[0]} {lines[1]}\n{lines[2]}"


def test_accents_are_composed_as_models_write_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(normalize("NFD", MEETING))
    assert read_document(tmp_path / "a.txt") == MEETING


def test_lines_that_were_not_wrapped_stay_apart() -> None:
    verse = "Stoi na stacji\nlokomotywa\n\n- mleko\n- chleb"
    assert unwrap(verse) == "Stoi na stacji\nlokomotywa\n- mleko\n- chleb"
    divided = "spotkali się wieczorem na rynku, żeby to omó\xad\nwić jeszcze raz"
    assert unwrap(divided) == "spotkali się wieczorem na rynku, żeby to omówić jeszcze raz"
    line = "spotkali się wieczorem na rynku, żeby to omó\xad"
    assert unwrap("\n".join([line] * 3)) == line[:-1] * 2 + line


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", b"PK\x03\x04\0\0", "it is no text"),
        ("a.txt", b" \n\t\n", "there is no text in it; the document"),
        ("a.pdf", b"%PDF-1.4 broken", "PDFium says"),
        ("a.md", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "it holds a private key"),
        ("b.md", b"Klucz:\n-----BEGIN RSA PRIVATE KEY-----\nAAAA\n", "it holds a private key"),
        ("a.html", b"<html><body><img src=x></body></html>", "there is no text in it"),
    ],
)
def test_what_is_no_document_is_refused_with_its_name(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=why) as refused:
        read_document(tmp_path / name)
    assert str(refused.value).startswith(str(tmp_path / name))


def test_a_link_that_takes_the_place_of_a_document_is_not_opened(tmp_path: Path) -> None:
    """As between finding the documents of a folder and reading them."""
    write(tmp_path / "outside" / "private.txt")
    place = write(tmp_path / "inside" / "kept.txt")
    [found], _ = find_documents([place.parent], Rules())
    place.unlink()
    place.symlink_to(tmp_path / "outside" / "private.txt")
    with pytest.raises(UnopenedError, match="left out for now"):
        read_document(Path(found.path))


def test_documents_come_by_their_paths_whatever_the_order_of_folders(tmp_path: Path) -> None:
    folders = [write(tmp_path / name / f"{name}.txt").parent for name in ("b", "c", "a")]
    found, _ = find_documents(folders, Rules())
    assert [Path(file.path).name for file in found] == ["a.txt", "b.txt", "c.txt"]
    assert find_documents(folders[::-1], Rules())[0] == found


@pytest.mark.parametrize(("length", "joined"), [(39, False), (40, True)])
def test_a_line_was_wrapped_if_it_is_long_enough(length: int, joined: bool) -> None:
    lines = "x" * length + "\nmały"
    assert unwrap(lines) == (lines.replace("\n", " ") if joined else lines)
