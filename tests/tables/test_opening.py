"""Which table is opened, and that none is used that is damaged, incomplete or of another pair."""

from __future__ import annotations

from gc import collect
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import pytest
from small_tables import dictionary_bundle
from small_tokenizers import of_merges
from written_tables import write_bundle

from tokalign.build.alignment import align, build_alignment
from tokalign.errors import BundleError, FingerprintError, MissingAssetError, UsageError
from tokalign.tables import bundle, opening
from tokalign.tables.dictionary import SOURCE
from tokalign.tables.finding import table_folder
from tokalign.tables.header import KINDS
from tokalign.tables.opening import open_alignment, open_dictionary

TARGET = of_merges(b"abc", [(b"a", b"b"), (b"ab", b"c")])
DRAFT = of_merges(b"abc", [(b"b", b"c")])


class Folders(NamedTuple):
    """Where tables are looked for, in this order."""

    model_folder: Path
    named: Path
    user: Path


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    found = Folders(tmp_path / "model", tmp_path / "named", tmp_path / "user" / "tables")
    monkeypatch.setenv("TOKALIGN_TABLES", str(found.named))
    monkeypatch.setattr(
        "tokalign.tables.finding.user_data_path", lambda *_, **__: found.user.parent
    )
    return found


def write_dictionary(path: Path, language: str | None, answer: int = 3) -> Path:
    """A dictionary that expects `answer` after the id 1."""
    size, known = len(TARGET.vocabulary), TARGET.fingerprint
    bundle = dictionary_bundle({(1,): ((answer,), 1.0)}, size, known, language)
    write_bundle(path, bundle)
    return path


def answer_of(**given: Any) -> int | None:
    """What the dictionary that is opened expects after the id 1; None where none is opened."""
    table = open_dictionary(TARGET, **given)
    return None if table is None else table.follow([1], 1).ids[0]  # type: ignore[list-item]


def sources_of(**given: Any) -> dict[str, int]:
    """What each of several dictionaries expects after the id 1, by the names of their sources."""
    table = open_dictionary(TARGET, **given)
    assert table is not None
    return {name: one.follow([1], 1).ids[0] for name, one in table.by_source.items()}  # type: ignore[list-item]


def test_the_first_folder_wins_within_a_language(folders: Folders) -> None:
    for number, folder in reversed(list(enumerate(folders))):
        write_dictionary(folder / "any" / "pl.dictionary.tok", "pl", answer=number)
        assert answer_of(model_folder=folders.model_folder) == number
        assert answer_of(model_folder=folders.model_folder, languages=["pl"]) == number


def test_of_several_languages_each_is_a_source_and_has_a_note(folders: Folders) -> None:
    """Also where they lie in different folders: precedence holds within a language only."""
    write_dictionary(folders.named / "uk.dictionary.tok", "uk", answer=4)
    write_dictionary(folders.user / "uk.dictionary.tok", "uk", answer=0)
    write_dictionary(folders.user / "pl.dictionary.tok", "pl", answer=1)
    notes: list[str] = []
    assert sources_of(note=notes.append) == {"dictionary:uk": 4, "dictionary:pl": 1}
    assert len(notes) == 2
    assert answer_of(languages=["uk"]) == 4
    assert answer_of(languages=["pl"]) == 1
    for asked in (["pl", "uk"], ["uk", "pl"]):
        assert [*sources_of(languages=asked)] == [f"dictionary:{language}" for language in asked]
    assert answer_of(languages=["uk", "uk"]) == 4


def test_a_dictionary_of_a_domain_does_not_hide_the_general_one(folders: Folders) -> None:
    """A language may have several; only files of the same name stand for each other."""
    write_dictionary(folders.named / "pulled" / "a--b" / "law.dictionary.tok", "pl", answer=1)
    write_dictionary(folders.user / "x" / "law.dictionary.tok", "pl", answer=2)
    write_dictionary(folders.user / "x" / "pl.dictionary.tok", "pl", answer=4)
    both = {"dictionary:law": 1, "dictionary:pl": 4}
    assert sources_of() == sources_of(languages=["pl"]) == both


def test_what_was_built_comes_before_what_was_pulled(folders: Folders) -> None:
    for place in (folders.user / "pulled" / "a--b", folders.user / "z"):
        write_dictionary(place / "pl.dictionary.tok", "pl", answer=1 if place.name == "z" else 2)
        assert answer_of() == (1 if place.name == "z" else 2)


def test_a_language_joins_the_files_that_are_named(folders: Folders, tmp_path: Path) -> None:
    """A general dictionary that is found, and one of a domain or a person."""
    law = write_dictionary(tmp_path / "law.dictionary.tok", "pl", answer=1)
    own = write_dictionary(tmp_path / "own.dictionary.tok", "en", answer=2)
    write_dictionary(folders.user / "uk.dictionary.tok", "uk", answer=4)
    general = write_dictionary(folders.user / "pl.dictionary.tok", "pl", answer=0)
    for file in (law, str(law)):
        assert answer_of(files=[file]) == 1, "a file that is named is used alone"
    assert answer_of(files=[own], languages=["en"]) == 2
    assert sources_of(files=[law, own]) == {"dictionary:pl": 1, "dictionary:en": 2}
    assert sources_of(files=[law], languages=["uk"]) == {"dictionary:pl": 1, "dictionary:uk": 4}
    both = {"dictionary:law": 1, "dictionary:pl": 0}
    assert sources_of(files=[law], languages=["pl"]) == both
    assert sources_of(files=[law, general, law]) == both, "of one language: by their names"
    again = write_dictionary(tmp_path / "b" / "law.dictionary.tok", "pl", answer=3)
    assert sources_of(files=[law, again]) == {"dictionary:law-1": 1, "dictionary:law-2": 3}


def test_a_language_that_is_not_there_names_those_that_are(folders: Folders) -> None:
    with pytest.raises(MissingAssetError, match=r"language: none; build one.*--language de"):
        answer_of(languages=["de"])
    write_dictionary(folders.user / "pl.dictionary.tok", "pl")
    write_dictionary(folders.user / "x.dictionary.tok", None)
    with pytest.raises(MissingAssetError, match=r"language: pl, unnamed; .*--language de"):
        answer_of(languages=["de"])


def test_an_empty_variable_counts_as_unset(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table_folder() == folders.named
    monkeypatch.setenv("TOKALIGN_TABLES", "")
    assert table_folder() == folders.user
    here = write_dictionary(folders.user.parent / "here" / "pl.dictionary.tok", "pl")
    monkeypatch.chdir(here.parent)  # where an empty path would point to
    assert answer_of() is None


def test_a_variable_that_names_a_file_is_refused(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that are there would not be found, and nothing would say why."""
    table = write_dictionary(folders.named / "pl.dictionary.tok", "pl")
    monkeypatch.setenv("TOKALIGN_TABLES", str(table))
    with pytest.raises(UsageError, match=r"names a file, .*; name a folder"):
        answer_of()


def test_a_table_of_other_tokenizers_is_not_found_and_not_opened(folders: Folders) -> None:
    path = write_dictionary(folders.user / "pl.dictionary.tok", "pl")
    assert open_dictionary(DRAFT) is None
    with pytest.raises(FingerprintError, match="tokalign build --dictionary-only"):
        open_dictionary(DRAFT, files=[path])
    write_bundle(folders.user / "d.alignment.tok", build_alignment(DRAFT, TARGET))
    assert open_alignment(TARGET, DRAFT, otherwise=align).merge_sites is not None
    notes: list[str] = []
    assert open_alignment(DRAFT, TARGET, otherwise=align, note=notes.append).merge_sites is None
    assert "computed now" in notes[0]
    with pytest.raises(BundleError, match=r"give a \.alignment\.tok file"):
        open_alignment(TARGET, DRAFT, otherwise=align, file=str(path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the table files that are opened."""
    names, really = list[str](), bundle._opened

    def counted(path: Path, name: str) -> Any:
        names.append(path.name)
        return really(path, name)

    monkeypatch.setattr(bundle, "_opened", counted)
    return names


def test_a_table_is_read_once_for_a_tokenizer_until_it_changes(
    folders: Folders, opened: list[str]
) -> None:
    path = write_dictionary(folders.named / "pl.dictionary.tok", "pl", answer=2)
    damaged = folders.named / "a.dictionary.tok"
    write_dictionary(damaged, "pl")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    write_bundle(folders.named / "x.alignment.tok", build_alignment(DRAFT, TARGET))
    told = list[list[str]]()
    for _ in range(3):
        opened.clear()
        told.append([])
        assert answer_of(note=told[-1].append) == 2
        assert open_alignment(TARGET, DRAFT, otherwise=align, note=told[-1].append)
    assert {*opened} <= {damaged.name}
    assert told[0] == told[1] == told[2] != [], "what is used is said every time"
    write_dictionary(path, "pl", answer=4)
    assert answer_of() == 4
    assert {*opened} == {path.name, damaged.name}
    write_dictionary(folders.named / "uk.dictionary.tok", "uk", answer=1)
    assert set(sources_of().values()) == {1, 4}
    path.unlink()
    assert answer_of() == 1


def test_tables_go_with_their_tokenizer(folders: Folders, opened: list[str]) -> None:
    write_dictionary(folders.named / "pl.dictionary.tok", "pl")
    again = type(TARGET)(TARGET.spec)
    table = open_dictionary(again)
    read_again = open_dictionary(again)
    assert table is not None
    assert read_again is not None
    assert table.by_source == read_again.by_source
    assert again in opening._tables
    left = ref(table.by_source[SOURCE])
    del again, table, read_again
    collect()
    assert left() is None


def test_every_kind_of_tables_has_a_reader() -> None:
    assert opening._READERS.keys() == KINDS.keys()
