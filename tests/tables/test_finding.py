"""Where tables are found: which folder comes first, and which tables fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from written_tables import write_bundle

from tokalign.tables.bundle import Bundle
from tokalign.tables.finding import (
    compiled_folder,
    drafters_in,
    find_tables,
    packs_to_compile,
    pulled_folder,
    same_dictionaries,
    table_files,
)

ONE, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """All folders that are searched, in their order."""
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "named"))
    patched: dict[str, Any] = {
        "user_data_path": lambda *_, **__: tmp_path / "user",
        "shipped": lambda _: tmp_path / "shipped",
    }
    for name, function in patched.items():
        monkeypatch.setattr(f"tokalign.tables.finding.{name}", function)
    names = ("model", "named", "named/pulled", "user/tables", "user/tables/pulled")
    return [tmp_path / name for name in (*names, "user/learned", "shipped")]


def table(path: Path, files: Sequence[str] = (), size: int = 47_116, **fingerprints: str) -> Path:
    language, kind = path.name.split(".")[-3:-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    bundle = Bundle(
        kind=kind,
        fingerprints=fingerprints,
        corpus={"files": [{"name": name, "bytes": size} for name in files]},
        parameters={"language": language},
        sections={},
    )
    write_bundle(path, bundle)
    return path


def found(model: Path | None = None, kind: str = "dictionary", **fits: str) -> list[Path]:
    return [path for path, _ in find_tables(kind, model_folder=model, **fits)]


def test_folders_are_searched_in_their_order(places: list[Path]) -> None:
    for place in reversed(places):
        place.mkdir(parents=True, exist_ok=True)
        table(place / "a.dictionary.tok", target=ONE)
    expected = [place / "a.dictionary.tok" for place in places]
    assert list(dict.fromkeys(found(places[0], target=ONE))) == expected
    assert pulled_folder() == places[2]


def test_what_was_compiled_of_a_pack_gives_way_to_what_was_built_or_pulled(
    places: list[Path],
) -> None:
    """`tokalign build` says that every later command uses its table, whatever its folder's name."""
    compiled = table(compiled_folder(ONE) / "pl.dictionary.tok", target=ONE)
    assert same_dictionaries(compiled) == [compiled]
    for folder in ("pulled/bielik", "bielik", "0"):
        newer = table(places[1] / folder / "pl.dictionary.tok", target=ONE)
        before = found(target=ONE)[1]
        assert found(target=ONE)[0] == newer
        assert same_dictionaries(newer)[:2] == [newer, before]
        assert found(target=ONE)[-1] == compiled
    elsewhere = table(places[1].parent / "elsewhere" / "pl.dictionary.tok", target=ONE)
    other = table(places[1] / "law" / "law.dictionary.tok", target=ONE)
    unlike = table(places[1] / "llama" / "pl.dictionary.tok", target=OTHER)
    same = [same_dictionaries(path) for path in (other, unlike)]
    assert same == [[other], [unlike]]
    assert elsewhere not in same_dictionaries(elsewhere)


def test_a_dictionary_of_the_bundled_text_comes_last(places: list[Path]) -> None:
    """It is what `tokalign build` without FILEs makes: a few pages, in place of a language."""
    name, packs = "pl.dictionary.tok", {"pl": table(places[-1] / "pl.pack.tok")}
    compiled = table(compiled_folder(ONE) / name, target=ONE)
    sample = table(places[1] / "bielik" / name, files=("pl-mini.txt",), target=ONE)
    assert found(target=ONE) == [compiled, sample] == same_dictionaries(sample)
    assert packs_to_compile(ONE, packs) == {}
    compiled.unlink()
    assert (found(target=ONE), packs_to_compile(ONE, packs)) == ([sample], packs)
    documents = table(places[-2] / "pl" / name, target=ONE)  # of `tokalign learn --name pl`
    assert packs_to_compile(ONE, packs) == packs
    documents.unlink()
    for own in (
        table(sample, files=("pl-mini.txt", "own.txt"), target=ONE),
        table(sample, files=("pl-mini.txt",), size=1 << 20, target=ONE),
    ):
        assert (found(target=ONE), packs_to_compile(ONE, packs)) == ([own], {})
    # A pack of that text alone is not compiled again and again.
    sample.unlink()
    table(compiled, files=("pl-mini.txt",), target=ONE)
    assert packs_to_compile(ONE, packs) == {}
    # What a model expects of it is what was asked for.
    table(pulled_folder() / "pl.logits.tok", target=ONE)
    logits = table(places[1] / "pl.logits.tok", files=("pl-mini.txt",), target=ONE)
    assert found(target=ONE, kind="logits")[0] == logits


def test_a_pack_is_compiled_again_once_a_newer_one_counts_another_text(places: list[Path]) -> None:
    """A later tokalign brings other packs. An older one beside it does not bring its own back."""
    compiled = table(compiled_folder(ONE) / "pl.dictionary.tok", files=("a.txt",), target=ONE)
    pack = table(places[-1] / "pl.pack.tok", files=("a.txt",))
    later = 1 << 33
    for counted, made, is_stale in (
        ("a.txt", 1, False),
        ("b.txt", 1, True),
        ("b.txt", later, False),
    ):
        table(pack, files=(counted,))
        os.utime(pack, (0, 0))  # as images and archives keep it
        os.utime(compiled, (made, made))
        assert packs_to_compile(ONE, {"pl": pack}) == ({"pl": pack} if is_stale else {})
    built = table(places[1] / "bielik" / "pl.dictionary.tok", files=("a.txt",), target=ONE)
    os.utime(compiled, (1, 1))
    assert packs_to_compile(ONE, {"pl": pack}) == {}
    built.unlink()
    assert packs_to_compile(ONE, {"pl": pack}) == {"pl": pack}


def test_a_folder_is_searched_with_those_in_it_by_name(places: list[Path]) -> None:
    folder = places[1]
    (folder / "in").mkdir(parents=True)
    names = ("b.dictionary.tok", "a.dictionary.tok", "in/0.dictionary.tok")
    for name in names:
        table(folder / name, target=ONE)
    (folder / "in" / "deeper").mkdir()
    table(folder / "in" / "deeper" / "c.dictionary.tok", target=ONE)
    for name in ("._a.dictionary.tok", "in/._0.dictionary.tok"):  # of macOS on another's disk
        (folder / name).write_bytes(b"\0\x05\x16\x07")
    assert table_files(folder, "dictionary") == [folder / names[i] for i in (1, 0, 2)]


def test_a_table_fits_by_kind_and_by_all_its_fingerprints(places: list[Path]) -> None:
    folder = places[1]
    folder.mkdir()
    table(folder / "a.dictionary.tok", target=ONE)
    pair = table(folder / "p.alignment.tok", target=ONE, draft=OTHER)
    (folder / "x.alignment.tok").write_bytes((folder / "a.dictionary.tok").read_bytes())
    notes: list[str] = []
    (folder / "broken.dictionary.tok").write_bytes(b"no table")
    fitting = find_tables("dictionary", target=ONE, note=notes.append)
    assert [path.name for path, _ in fitting] == ["a.dictionary.tok"]
    assert len(notes) == 1
    assert found(target=OTHER) == []
    assert found(kind="alignment", target=ONE, draft=OTHER) == [pair]
    assert found(kind="alignment", target=OTHER, draft=ONE) == []
    assert found(kind="alignment", target=ONE) == []


def test_drafters_are_folders_by_name(tmp_path: Path) -> None:
    names = ("drafter", "a.drafter", "in/drafter", "in/b.drafter")
    for name in (*names, "in/deep/drafter", "drafters"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file.drafter").write_text("")
    assert list(drafters_in(tmp_path)) == [tmp_path / name for name in names]
