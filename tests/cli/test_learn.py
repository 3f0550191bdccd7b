"""`tokalign learn` and `forget`, as they are run: figures, messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import LETTER, MEETING
from small_tokenizers import write_tokenizer


class User:
    """Somebody with a home folder of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.target = write_tokenizer(home / "small-target", vocabulary_size=300)
        self.documents = home / "documents"
        self.documents.mkdir()
        for number in range(3):
            text = f"Sprawa {number}.\n{MEETING}\n{LETTER}\n"
            (self.documents / f"{number}.md").write_text(text)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tokalign", *map(str, arguments)],
            env=os.environ | {"HOME": str(self.home), "XDG_DATA_HOME": str(self.home / "data")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        return found


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.slow
def test_learn_list_use_and_forget(user: User) -> None:
    learned = user.json("learn", user.documents, "--name", "notes", "--target", user.target)
    assert (learned["documents_read"], learned["documents_with_text"]) == (3, 3)
    (table,) = learned["tables"]
    assert table["built"]

    (listed,) = user.json("learn", "--list")["learned"]
    assert listed["name"] == "notes"
    assert listed["folders"] == [str(user.documents)]
    assert listed["tables"] == [table["path"]]

    (user.documents / "text.txt").write_text(f"{MEETING} {LETTER}\n" * 5)
    used = user.run(
        *("bench", "--target", user.target, "--language", "notes", "--method", "hybrid"),
        *("--text", user.documents / "text.txt"),
    )
    assert used.returncode == 0, used.stderr
    assert table["path"] in used.stderr
    assert user.json("learn", "--name", "notes")["documents_read"] == 4

    assert user.json("tables", "forget", "notes")["forgotten"] == [str(Path(table["path"]).parent)]
    assert user.json("learn", "--list") == {"learned": []}
    gone = user.run("tables", "forget", "notes")
    assert gone.returncode == 4
    assert "nothing was learned under the name notes" in gone.stderr


def test_of_several_names_all_are_there_before_one_is_forgotten(user: User) -> None:
    learned = user.run("learn", user.documents, "--name", "notes", "--target", user.target)
    assert learned.returncode == 0
    refused = user.run("tables", "forget", "notes", "other")
    assert (refused.returncode, "under the name other" in refused.stderr) == (4, True)
    assert "notes" in user.run("learn", "--list").stdout
    assert user.run("tables", "forget", "notes", "notes").returncode == 0


def test_wrong_use_is_one_line(user: User) -> None:
    for arguments, code, words in [
        (["learn", user.documents], 2, "give --name NAME"),
        (["learn", user.home / "nowhere", "--name", "a", "--target", user.target], 4, "not there"),
    ]:
        result = user.run(*arguments)
        assert result.returncode == code
        assert len(result.stderr.splitlines()) == 1
        assert words in result.stderr
