"""A collection that was updated equals one made afresh; what is gone leaves no trace."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import nullcontext
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from documents import LETTER, MEETING, write_pdf
from processes import small_disk
from small_tables import at_least
from small_tokenizers import write_tokenizer

from tokalign.build import learning as kept
from tokalign.build import text_files
from tokalign.build.dictionary.dictionary_bundle import build_dictionary
from tokalign.build.documents import Rules, UnopenedError, find_documents, read_document
from tokalign.build.learning import Collection, Learned, collections, learn
from tokalign.cli.sharing import push_tables
from tokalign.errors import CorpusError, MissingAssetError, OutputError, UsageError
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import read_bundle
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.self_check import read_tokenizer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("t") / "small-target", vocabulary_size=360)


@pytest.fixture(autouse=True)
def user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(kept, "learned_folder", lambda: tmp_path / "data" / "learned")
    monkeypatch.setattr("tokalign.tables.finding.learned_folder", kept.learned_folder)
    return tmp_path / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"Sprawa numer {number}.\n{MEETING}\n{LETTER}\n")
    return folder


@pytest.fixture
def notes(folder: Path, target: Path) -> Collection:
    learn("notes", folders=[folder], targets=[str(target)])
    return Collection("notes")


def again() -> Learned:
    return learn("notes")


def content(collection: Collection) -> dict[str, bytes]:
    """What a collection keeps of the documents."""
    files = (path for path in collection.folder.iterdir() if path.suffix not in (".json", ".lock"))
    return {path.name: path.read_bytes() for path in files}


def test_documents_are_read_only_if_something_changed(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def read(path: Path) -> str:
        opened.append(path.name)
        return path.read_text()

    monkeypatch.setattr(kept, "DocumentReader", lambda: nullcontext(read))
    learn("notes", folders=[folder], targets=[str(target)])
    assert opened == [f"{number}.txt" for number in range(6)]
    opened.clear()
    unchanged = again()
    assert not any(unchanged.tables.values())
    assert (unchanged.read, unchanged.unchanged) == (0, 6)
    assert opened == []
    for change in (
        lambda: (folder / "2.txt").write_text("Zupełnie inna sprawa.\n"),
        lambda: (folder / "7.md").write_text("Nowa notatka.\n"),
        lambda: (folder / "4.txt").unlink(),
        lambda: Collection("notes").tables[0].unlink(),
    ):
        change()
        learned = again()
        assert learned.read == len(list(folder.iterdir()))
        assert all(learned.tables.values())


def test_many_updates_end_where_a_fresh_start_does(
    folder: Path, target: Path, notes: Collection
) -> None:
    (folder / "0.txt").unlink()
    (folder / "zz.txt").write_text(f"{MEETING}\nDopisek.\n" * 3)
    again()
    (folder / "zz.txt").write_text(f"{MEETING} " * 4000)  # longer than a paragraph may be
    (folder / "sub").mkdir()
    (folder / "5.txt").rename(folder / "sub" / "5.txt")
    again()
    learn("fresh", folders=[folder], targets=[str(target)])
    both = notes, Collection("fresh")
    assert [[*content(one)] for one in both] == [["small-target.dictionary.tok"]] * 2
    one, other = (read_bundle(collection.tables[0]).sections for collection in both)
    assert {k: bytes(v) for k, v in one.items()} == {k: bytes(v) for k, v in other.items()}


def test_a_copy_counts_once_and_takes_over_when_the_first_is_gone(
    folder: Path, notes: Collection
) -> None:
    def entries() -> object:
        return read_bundle(notes.tables[0]).statistics

    alone = entries()
    (folder / "copy of 5.txt").write_bytes((folder / "5.txt").read_bytes())
    assert again().copies == 1
    assert entries() == alone
    (folder / "5.txt").unlink()
    assert again().copies == 0
    assert entries() == alone


def test_every_model_has_a_dictionary_and_all_forget_together(
    folder: Path, notes: Collection, tmp_path: Path
) -> None:
    other = write_tokenizer(tmp_path / "other-target", vocabulary_size=300)
    first = notes.tables[0].read_bytes()
    learn("notes", targets=[str(other)])
    tables, kinds = notes.tables, ("other", "small")
    assert [table.name for table in tables] == [f"{kind}-target.dictionary.tok" for kind in kinds]
    assert tables[1].read_bytes() == first
    (folder / "0.txt").unlink()
    assert all(again().tables.values())


def test_nothing_of_a_forgotten_collection_is_left(
    folder: Path, target: Path, notes: Collection, user_data: Path
) -> None:
    learn("other", folders=[folder], targets=[str(target)])
    notes.forget()
    assert [one.name for one in collections()] == ["other"]
    Collection("other").forget()
    assert [path for path in user_data.rglob("*") if path.is_file()] == []
    with pytest.raises(MissingAssetError, match="nothing was learned under the name notes"):
        notes.forget()


def test_only_the_owner_can_read_it_and_it_is_never_pushed(
    notes: Collection, tmp_path: Path
) -> None:
    assert stat.S_IMODE(os.stat(notes.folder).st_mode) == 0o700
    (tmp_path / "hub").mkdir()
    with pytest.raises(UsageError, match="learned from private documents and is not pushed"):
        push_tables(notes.tables, str(tmp_path / "hub"))
    assert list((tmp_path / "hub").iterdir()) == []


def test_no_connection_is_made(folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    (folder / "page.html").write_text(
        f'<link rel="stylesheet" href="http://127.0.0.1:9/a.css"><p>{MEETING}</p>'
        '<img src="http://127.0.0.1:9/a.png"><iframe src="http://127.0.0.1:9/"></iframe>'
    )
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(kept, "DocumentReader", lambda: nullcontext(read_document))
    assert learn("notes", folders=[folder], targets=[str(target)]).read == 7


def test_what_was_read_is_not_in_the_table_after_it_is_gone(
    folder: Path, target: Path, notes: Collection
) -> None:
    tokenizer = read_tokenizer(target)

    def known() -> str:
        """How the table goes on with the beginning of what was read."""
        tables = open_dictionary(tokenizer, files=notes.tables)
        assert tables is not None
        [table] = tables.by_source.values()
        assert isinstance(table, BackoffTable)
        return tokenizer.decode(at_least(table, 0.5).follow(tokenizer.encode(MEETING[:30]), 8).ids)

    assert known()
    assert known() in MEETING
    for path in folder.iterdir():
        path.write_text("Krótka i zupełnie inna notatka o pogodzie.\n" * 2)
    again()
    assert not known()
    kept_files = {"learn.lock", "settings.json", "small-target.dictionary.tok"}
    assert {path.name for path in notes.folder.iterdir()} == kept_files
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(CorpusError, match="there is no document with text"):
        again()
    assert notes.tables == []


def test_what_a_killed_run_left_of_documents_that_are_gone_is_deleted(
    folder: Path, notes: Collection
) -> None:
    unfinished = notes.folder / ".small-target.dictionary.tok.4711.partial"
    unfinished.write_text(MEETING)
    notes.counting.mkdir()
    (notes.counting / "documents.txt").write_text(MEETING)
    again()
    assert not unfinished.exists()
    assert not notes.counting.exists()
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(CorpusError, match="there is no document with text"):
        again()
    assert not notes.counting.exists()


def test_a_data_folder_that_cannot_be_made_is_chosen_by_a_variable(
    folder: Path, target: Path, user_data: Path
) -> None:
    user_data.touch()
    with pytest.raises(UsageError, match="set XDG_DATA_HOME"):
        learn("notes", folders=[folder], targets=[str(target)])


def test_two_processes_do_not_change_one_collection(notes: Collection) -> None:
    for change in (again, notes.forget):
        with (
            notes.changing(),
            pytest.raises(UsageError, match=r"process \d+ on .* is learning notes; wait"),
        ):
            change()
    again()


def test_a_folder_whose_name_is_not_utf8_is_learned(tmp_path: Path, target: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/d\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    (folder / "a.txt").write_text(f"{MEETING}\n{MEETING}\n")
    learn("notes", folders=[folder], targets=[str(target)])
    assert again().unchanged == 1


def test_unreadable_documents_are_named_once(folder: Path, target: Path) -> None:
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    write_pdf(folder / "good.pdf", ["Zebranie odbywa sie we wtorek."])
    learned = learn("notes", folders=[folder], targets=[str(target)])
    assert [problem for problem in learned.problems if "broken.pdf" in problem]
    assert len(learned.problems) == 1
    assert again().problems == []


def test_a_document_that_cannot_be_opened_is_read_as_soon_as_it_can(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permission changes neither the size of a file nor its time."""

    def read(path: Path) -> str:
        if path.name != "3.txt":
            return read_document(path)
        raise UnopenedError("Permission denied; the document is left out for now", path=str(path))

    with monkeypatch.context() as patch:
        patch.setattr(kept, "DocumentReader", lambda: nullcontext(read))
        [problem] = learn("notes", folders=[folder], targets=[str(target)]).problems
    assert "3.txt: " in problem
    learned = again()
    assert (learned.read, learned.texts, learned.problems) == (6, 6, [])
    assert again().unchanged == 6


def test_documents_are_read_again_where_other_keys_are_left_out(
    notes: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version knows more of them, and what an earlier one learned is to be forgotten."""
    monkeypatch.setattr(kept, "CONTENTS", "more")
    assert again().read == 6


def test_a_full_disk_loses_nothing_and_what_was_learned_can_be_forgotten(
    folder: Path, notes: Collection
) -> None:
    before = content(notes)
    numbers = "\n".join(str(number**7) for number in range(4000))
    (folder / "numbers.txt").write_text(numbers)
    counting = "room .*, or in build .*; build goes on"  # learning begins anew
    for size, told in ((4_000, "room .*, or set XDG_DATA_HOME"), (200_000, counting)):
        with small_disk(size), pytest.raises(OutputError, match=told):
            again()
        assert content(notes) == before
    assert again().read == 7
    with small_disk(0):
        notes.forget()
    assert collections() == []


def test_a_run_that_fails_at_its_second_table_leaves_what_there_was(
    folder: Path, notes: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, settings = content(notes), notes.settings()
    other = write_tokenizer(tmp_path / "other-target", vocabulary_size=300)
    (folder / "0.txt").unlink()
    built = iter([build_dictionary])

    def build(*given: Any, **how: Any) -> Any:
        return next(built, interrupted)(*given, **how)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept, "build_dictionary", build)
        with pytest.raises(KeyboardInterrupt):
            learn("notes", targets=[str(other)], exclude=["3.txt"])
    assert (content(notes), notes.settings()) == (before, settings)
    assert len(learn("notes", targets=[str(other)]).tables) == len(notes.tables) == 2


def test_a_first_run_that_fails_leaves_nothing_in_the_list(tmp_path: Path, target: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no document with text"):
        learn("notes", folders=[tmp_path / "empty"], targets=[str(target)])
    assert collections() == []


def test_documents_that_cannot_be_opened_now_are_not_forgotten(
    notes: Collection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        raise UnopenedError("Permission denied", path=str(path))

    before = content(notes)
    os.utime(folder / "0.txt", ns=(0, 0))
    monkeypatch.setattr(kept, "DocumentReader", lambda: nullcontext(read))
    with pytest.raises(CorpusError, match="no document with text"):
        again()
    assert content(notes) == before


def test_a_folder_that_is_gone_makes_nothing_be_forgotten(folder: Path, notes: Collection) -> None:
    before = content(notes)
    folder.rename(folder.with_name("unplugged"))
    with pytest.raises(MissingAssetError, match="is not there"):
        again()
    assert content(notes) == before


def test_a_model_that_is_gone_is_told_to_be_one_of_the_collection(
    folder: Path, target: Path, tmp_path: Path
) -> None:
    other = copytree(target, tmp_path / "other-target")
    learn("notes", folders=[folder], targets=[str(target), str(other)])
    rmtree(other)
    with pytest.raises(MissingAssetError, match=r"other-target .*tables forget notes, and learn"):
        again()


def test_what_is_missing_at_first_is_asked_for(folder: Path, target: Path) -> None:
    with pytest.raises(UsageError, match="give a FOLDER"):
        learn("notes", targets=[str(target)])
    with pytest.raises(UsageError, match="give a --target NAME"):
        learn("notes", folders=[folder])
    for name in ("../notes", "n" * 65):
        with pytest.raises(UsageError, match="cannot name a collection"):
            learn(name, folders=[folder], targets=[str(target)])
    assert collections() == []


def test_the_longest_name_makes_a_table_that_can_be_read(folder: Path, target: Path) -> None:
    [path] = learn("n" * 64, folders=[folder], targets=[str(target)]).tables
    assert read_bundle(path).parameters["language"] == "n" * 64


def test_a_broken_collection_says_how_to_mend_it(notes: Collection) -> None:
    (notes.folder / "settings.json").write_bytes(b"nonsense")
    with pytest.raises(CorpusError, match="forget the collection and learn it again"):
        again()


def test_a_document_edited_to_the_same_size_is_read_again(folder: Path, notes: Collection) -> None:
    before = content(notes)
    document = folder / "2.txt"
    size, edited = document.stat().st_size, document.read_text().replace("numer", "punkt")
    document.write_text(edited)
    assert document.stat().st_size == size
    os.utime(document, ns=(0, document.stat().st_mtime_ns + 10**9))
    assert all(again().tables.values())
    assert content(notes) != before


@pytest.mark.parametrize("length", [9, 10, 11, 20, 21])
def test_long_paragraphs_are_written_in_parts_of_which_none_is_lost(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "a.txt"
    document.write_text(("abcdefghij" * 3)[:length] + "\nKoniec.")
    monkeypatch.setattr(text_files, "LONGEST_PARAGRAPH", 10)
    found, skipped = find_documents([tmp_path], Rules())
    texts = tmp_path / "texts"
    assert kept._read_all(found, texts, Learned(skipped=skipped, tables={}), lambda _: None)
    *parts, last = texts.read_text().splitlines()
    assert (last, "".join(parts)) == ("Koniec.", ("abcdefghij" * 3)[:length])
    assert [len(part) for part in parts[:-1]] == [10] * (-(-length // 10) - 1)
