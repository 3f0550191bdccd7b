"""Every command runs once, on the demo pair and in seconds; and the reference names them all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_lines import RUNS, TABLE, prepared, run, words
from command_reference import command_names, reference
from places import ROOT
from poison import poisoned
from ticking import ticking

from tokalign.cli import group


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is asked for, in a folder whose Python files must not be run."""
    with poisoned(prepared(tmp_path_factory.mktemp("commands"))) as folder:
        yield folder


def test_every_command_is_run() -> None:
    assert set(RUNS) == set(command_names())


@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for variable, place in {"TABLES": "found", "CACHE": "cache"}.items():
        monkeypatch.setenv(f"TOKALIGN_{variable}", str(folder / place))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr("tokalign.serve.server.Server.wait", lambda _server: None)
    monkeypatch.setattr("tokalign.evaluate.calibrate.CONTEXT", 32)  # a long one takes long
    make_first(name, folder)
    typed = [*name.split(), *words(RUNS[name]), "--json"]
    with ticking():
        assert isinstance(run(*typed, typed="Wisła jest\n").json, dict)


def make_first(name: str, folder: Path) -> None:
    """What a command reads, where the test of another command has not made it in this process."""
    table = folder / TABLE
    if name.startswith("tables") and not table.exists():
        assert not CliRunner().invoke(group, ["build", *words(RUNS["build"])]).exit_code
    if name == "tables pull" and not (folder / "model" / "tokalign").exists():
        (folder / "model" / "tokalign").mkdir()
        shutil.copy(table, folder / "model" / "tokalign")
    if name == "models rm":
        (folder / "cache" / "checked-tokenizers").mkdir(parents=True, exist_ok=True)
    if name == "tables forget":
        assert not CliRunner().invoke(group, ["learn", *words(RUNS["learn"])]).exit_code


def test_the_reference_is_current() -> None:
    """Else: python docs/command_reference.py > docs/commands.md"""
    assert (ROOT / "docs" / "commands.md").read_text("utf-8") == reference()


@pytest.mark.parametrize("name", [*words("bench calibrate learn"), "tables show"])
def test_a_tokenizer_that_is_a_program_is_trusted_where_it_is_read(name: str) -> None:
    """What refuses it advises this option."""
    assert "--trust-remote-code" in CliRunner().invoke(group, [*name.split(), "--help-all"]).stdout


@pytest.mark.parametrize("name", RUNS)
def test_help_fits_one_screen(name: str) -> None:
    typed = [*name.split(), "--help"]
    lines = CliRunner().invoke(group, typed, terminal_width=80).stdout.splitlines()
    assert 5 < len(lines) <= 50
    assert sum(line.startswith("  -") for line in lines) <= 30


@pytest.mark.parametrize("name", ["tables", "models"])
def test_what_a_command_does_is_told_in_whole_sentences(name: str) -> None:
    told = CliRunner().invoke(group, [name, "--help"], terminal_width=80).stdout
    assert "Commands:" in told
    assert "..." not in told.partition("Commands:")[2]
