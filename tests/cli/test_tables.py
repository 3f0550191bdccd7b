"""Tables that are shown, verified, learned from documents and forgotten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from command_lines import run
from documents import LETTER, MEETING
from places import DEMO
from small_families import write_family
from small_tables import dictionary_bundle
from small_tokenizers import write_tokenizer
from written_tables import write_bundle

from tokalign.names.aliases import find_alias
from tokalign.names.registry import _installed


@pytest.fixture
def table(tmp_path: Path) -> Path:
    bundle = dictionary_bundle({(1, 2): ((3,), 0.5)}, 10, "ab" * 32)
    path = tmp_path / "pl.dictionary.tok"
    write_bundle(
        path,
        replace(
            bundle,
            corpus={"files": [{"name": "a.txt", "bytes": 1234, "lines": 5}]},
            parameters={**bundle.parameters, "p_min": 0.2},
        ),
    )
    return path


def test_show_shows_all_that_the_header_says(table: Path) -> None:
    shown = run("tables", "show", table, "--json").json
    assert shown["bytes"] == table.stat().st_size
    assert (shown["kind"], shown["format_version"]) == ("dictionary", 3)
    assert shown["fingerprints"] == {"target": "ab" * 32}
    assert shown["sections"]["backoff.predictions.ids.u16"] == 2 * 2
    lines = run("tables", "show", table).out.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["corpus.files.1.bytes"] == "1,234"
    assert rows["parameters.p_min"] == "0.2"


def test_verify_names_every_bad_file_and_exits_with_the_code_of_the_worst(table: Path) -> None:
    flipped = table.with_name("flipped.tok")
    data = bytearray(table.read_bytes())
    data[-50] ^= 4
    flipped.write_bytes(data)
    cut = table.with_name("cut.tok")
    cut.write_bytes(table.read_bytes()[:-1])

    assert run("tables", "verify", table) == (0, f"{table}: ok\n", "")
    code, out, err = run("tables", "verify", table, flipped, cut)
    assert (code, out) == (3, f"{table}: ok\n")
    damaged, truncated = err.splitlines()
    assert damaged.startswith(f"tokalign: {flipped} is damaged")
    assert truncated.startswith(f"tokalign: {cut} is truncated")

    run("tables", "show", cut).is_refused(3, "truncated")
    run("tables", "show", table.with_name("none.tok")).is_refused(4)
    missing = run("tables", "verify", flipped, table.with_name("none.tok"), "--json")
    assert missing.code == 4
    report = json.loads(missing.out)
    assert not report["ok"]
    assert [file["ok"] for file in report["files"]] == [False, False]


def test_show_says_how_far_a_tokenizer_is_understood(tmp_path: Path) -> None:
    for name, level in (("Gemma", "aligned"), ("Unigram", "by text"), ("WordPiece", "ids only")):
        folder = write_family(tmp_path / name, name)
        told = run("tables", "show", folder, "--json").json
        assert told["level"] == level
        assert bool(told["why"]) == (level != "aligned")
        assert ("added_tokens_in_text" in told) == (level != "ids only")
    official = _installed(find_alias("bielik").vocabulary)
    assert official is not None
    assert official[1].name == "tokenizer.model.v1", "its name ends as no other's"
    run("tables", "show", official[1]).is_refused(3, "the order of its merges is unclear")
    for missing, code in (("no/such/folder", 4), ("nothing.tok", 4), ("no-alias", 2)):
        run("tables", "show", missing).is_refused(code, missing)


def test_show_says_what_a_trained_drafter_is(tmp_path: Path) -> None:
    folder = copytree(DEMO / "drafter", tmp_path / "my.drafter")
    told = run("tables", "show", folder, "--json").json
    assert (told["path"], told["drafter"]) == (str(folder), "ReDrafter")
    assert told["config"] == json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text('{"dflash_config": {}}')
    assert run("tables", "show", folder, "--json").json["drafter"] == "DFlash"
    (folder / "config.json").write_text("{}")
    run("tables", "show", folder).is_refused(4, "my.drafter")


@pytest.mark.parametrize("content", [b"\xff", b'{"model": {"vo', b"[" * 200_000])
def test_a_folder_with_a_damaged_tokenizer_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    run("tables", "show", tmp_path).is_refused(3, "tokenizer.json", "download it again")


def test_learn_list_use_and_forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, place in {"HOME": "", "XDG_DATA_HOME": "data"}.items():
        monkeypatch.setenv(variable, str(tmp_path / place))
    reader, documents = write_tokenizer(tmp_path / "m", vocabulary_size=300), tmp_path / "documents"
    documents.mkdir()
    for number in range(3):
        (documents / f"{number}.md").write_text(f"Sprawa {number}.\n{MEETING}\n{LETTER}\n")
    notes = ("--name", "notes", "--json")
    for wrong, code, said in (
        ([documents], 2, "give --name NAME"),
        ([documents / "no", "--name", "a", "--target", reader], 4, "not there"),
    ):
        assert run("learn", *wrong).is_refused(code, said).count("\n") == 0
    learned = run("learn", documents, "--target", reader, *notes).json
    assert (learned["documents_read"], learned["documents_with_text"]) == (3, 3)
    (table,) = learned["tables"]
    assert table["built"]

    # What another process is writing may be gone before its size is asked for.
    Path(table["path"]).with_name(".notes.partial").symlink_to("gone")
    (listed,) = run("learn", "--list", "--json").json["learned"]
    assert listed["name"] == "notes"
    assert listed["folders"] == [str(documents)]
    assert (listed["tables"], listed["bytes"]) == ([table["path"]], table["bytes"])

    (documents / "text.txt").write_text(f"{MEETING} {LETTER}\n" * 5)
    played = ("--language", "notes", "--method", "hybrid", "--text", documents / "text.txt")
    used = run("bench", "--target", reader, *played)
    assert used.code == 0, used.err
    assert table["path"] in used.err
    assert run("learn", *notes).json["documents_read"] == 4
    (documents / "empty.txt").touch()
    told = run("learn", "--name", "notes")
    assert "empty.txt: there is no text in it" in told.err
    assert "empty.txt" not in told.out, "a thousand of them would fill the screen"

    refused = run("tables", "forget", "notes", "other")
    refused.is_refused(4, "nothing was learned under the name other")
    assert "notes" in run("learn", "--list").out
    forgotten = run("tables", "forget", "notes", "notes", "--json").json["forgotten"]
    assert forgotten == [str(Path(table["path"]).parent)]
    assert run("learn", "--list", "--json").json == {"learned": []}
