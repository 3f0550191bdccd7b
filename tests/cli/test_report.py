"""`tokalign report`: from what decode printed to a page, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from markup import Document, assert_self_contained
from saved_runs import run_of

from tokalign.cli.report import command
from tokalign.errors import UsageError
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

IDS = (TargetId(1), TargetId(2))
ROUND = Round(limit=3, tree=TokenTree.chain(IDS[:1], "draft"), path=(0,), emitted=IDS)
RUN = json.dumps(run_of([ROUND], {1: b" Ala", 2: b" ma"}).to_json())


def test_a_page_from_a_file_or_from_stdin(tmp_path: Path) -> None:
    saved, file, piped = tmp_path / "run.json", tmp_path / "a.html", tmp_path / "b.html"
    saved.write_text(RUN)
    given = [str(file), "--run", str(saved), "--title", "Ala <ma>"]
    assert CliRunner().invoke(command, given).exit_code == 0
    page = file.read_text("utf-8")
    assert_self_contained(page)
    assert "Ala <ma>" in Document(page).pieces
    result = CliRunner().invoke(command, [str(piped), "--title", "Ala <ma>"], input=RUN)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "1 rounds" in result.stderr
    assert piped.read_text("utf-8") == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html", "run.json"]


@pytest.mark.parametrize("saved", ["", "[1", "{}", '{"trace": 3}'])
def test_what_is_no_run_is_refused_and_nothing_is_written(tmp_path: Path, saved: str) -> None:
    result = CliRunner().invoke(command, [str(tmp_path / "a.html")], input=saved)
    assert isinstance(result.exception, UsageError)
    assert "tokalign decode" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    missing = ["--run", str(tmp_path / "none.json")]
    result = CliRunner().invoke(command, [str(tmp_path / "a.html"), *missing])
    assert "none.json cannot be read" in str(result.exception)
    result = CliRunner().invoke(command, [str(tmp_path / "none" / "a.html")], input=RUN)
    assert isinstance(result.exception, UsageError)
    assert "cannot be written" in str(result.exception)
