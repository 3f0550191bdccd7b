"""Every command runs once, on the demo pair and in seconds; and the reference names them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from demo_commands import COMMANDS, DRAFT, TABLE, fill, words
from places import ROOT

from tokalign.cli import group
from tokalign.cli.reference import command_names, reference

RUNS = {
    **COMMANDS,
    "decode": [*COMMANDS["decode"], "--draft", DRAFT, "--html", "page.html"],
    "serve": words("serve --target TARGET --port 0"),
    "bench --text": words("bench --target TARGET --draft DRAFT a.txt --limit 1 --text --cost flat"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    fill(folder)
    return folder


def test_every_command_is_run() -> None:
    assert set(RUNS) - {"bench --text"} == set(command_names())


@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for variable, place in {"TABLES": "found", "CACHE": "cache"}.items():
        monkeypatch.setenv(f"TOKALIGN_{variable}", str(folder / place))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr("tokalign.serve.server.Server.wait", lambda _server: None)
    _prepare(name, folder)
    ended = CliRunner().invoke(
        group, [*RUNS[name], "--json"], input="Wisła jest\n", catch_exceptions=False
    )
    assert ended.exit_code == 0, ended.output
    assert isinstance(json.loads(ended.stdout), dict)


def _prepare(name: str, folder: Path) -> None:
    """What a command reads, where the test of another one has not made it in this process."""

    def run(name: str) -> None:
        assert not CliRunner().invoke(group, COMMANDS[name]).exit_code

    needs_table = TABLE in RUNS[name] or name == "tables pull"
    if needs_table and not (folder / TABLE).exists():
        run("build")
    if name == "tables pull" and not (folder / "model" / "tokalign").exists():
        (folder / "model" / "tokalign").mkdir()
        shutil.copy(folder / TABLE, folder / "model" / "tokalign")
    if name == "tables forget":
        run("learn")


def test_the_reference_is_current() -> None:
    """Else: python -m tokalign.cli.reference > docs/commands.md"""
    assert (ROOT / "docs" / "commands.md").read_text("utf-8") == reference()


@pytest.mark.parametrize(("name", "most"), [("decode", 25), ("serve", 30)])
def test_help_fits_one_screen(name: str, most: int) -> None:
    lines = CliRunner().invoke(group, [name, "--help"], terminal_width=80).stdout.splitlines()
    assert len(lines) <= 50
    assert sum(line.startswith("  -") for line in lines) <= most
