"""`tokalign learn` and `forget`, as they are run: figures, messages, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import run
from documents import LETTER, MEETING
from small_tokenizers import write_tokenizer


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer in the home folder of somebody who has documents."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "documents").mkdir()
    for number in range(3):
        text = f"Sprawa {number}.\n{MEETING}\n{LETTER}\n"
        (tmp_path / "documents" / f"{number}.md").write_text(text)
    return write_tokenizer(tmp_path / "small-target", vocabulary_size=300)


def test_learn_list_use_and_forget(target: Path) -> None:
    documents = target.parent / "documents"
    notes = ("--name", "notes", "--json")
    learned = run("learn", documents, "--target", target, *notes).json
    assert (learned["documents_read"], learned["documents_with_text"]) == (3, 3)
    (table,) = learned["tables"]
    assert table["built"]

    (listed,) = run("learn", "--list", "--json").json["learned"]
    assert listed["name"] == "notes"
    assert listed["folders"] == [str(documents)]
    assert listed["tables"] == [table["path"]]

    (documents / "text.txt").write_text(f"{MEETING} {LETTER}\n" * 5)
    played = ("--language", "notes", "--method", "hybrid", "--text", documents / "text.txt")
    used = run("bench", "--target", target, *played)
    assert used.code == 0, used.err
    assert table["path"] in used.err
    assert run("learn", *notes).json["documents_read"] == 4

    refused = run("tables", "forget", "notes", "other")
    refused.is_refused(4, "nothing was learned under the name other")
    assert "notes" in run("learn", "--list").out
    forgotten = run("tables", "forget", "notes", "notes", "--json").json["forgotten"]
    assert forgotten == [str(Path(table["path"]).parent)]
    assert run("learn", "--list", "--json").json == {"learned": []}


def test_wrong_use_is_one_line(target: Path) -> None:
    for words, code, said in (
        ([target.parent], 2, "give --name NAME"),
        ([target / "nowhere", "--name", "a", "--target", target], 4, "not there"),
    ):
        ended = run("learn", *words)
        ended.is_refused(code, said)
        assert len(ended.err.splitlines()) == 1
