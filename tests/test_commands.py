"""Every command runs once, on the demo pair and in seconds; and the reference names them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_reference import command_names, reference
from places import DEMO, ROOT
from polish import SENTENCES

from tokalign.cli import group

DECODE = "--target TARGET --draft DRAFT --ignore-chat-template"
TINY = "--window 16 --positions 64 --held-out 16 --width 8 --candidates 0 --batch 16"
RUNS = {
    "check": "--target TARGET --draft DRAFT a.txt",
    "decode": f"{DECODE} -p Wisła -m 4 --html page.html",
    "chat": f"{DECODE} -m 4 --no-calibrate",
    "serve": "--target TARGET --port 0",
    "build": "--target TARGET --dictionary-only a.txt --language pl --output tables",
    "learn": "notes --name notes --target TARGET",
    "train": f"--target TARGET a.txt --output drafter --labels text --evaluations 1 {TINY}",
    "tables show": "tables/target/pl.dictionary.tok",
    "tables verify": "tables/target/pl.dictionary.tok",
    "tables push": "tables/target/pl.dictionary.tok model",
    "tables pull": "model",
    "tables forget": "notes",
    "calibrate": "--target TARGET --budget 1",
    "bench": "--target TARGET --draft DRAFT a.txt --limit 1 --text --method copy --cost flat",
}
"""In this order each finds what the ones before it made."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    lines = "".join(sentence.replace("\n", " ") + "\n" for sentence in SENTENCES)
    (folder / "a.txt").write_text(lines)
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text(lines)
    (folder / "model").mkdir()
    return folder


def test_every_command_is_run() -> None:
    assert set(RUNS) == set(command_names())


@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for variable, place in {"TABLES": "found", "CACHE": "cache"}.items():
        monkeypatch.setenv(f"TOKALIGN_{variable}", str(folder / place))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr("tokalign.serve.server.Server.wait", lambda _server: None)
    monkeypatch.setattr("tokalign.evaluate.calibrate.CONTEXTS", (32,))  # long ones take long
    _prepare(name, folder)
    places = {"TARGET": str(DEMO / "target"), "DRAFT": str(DEMO / "draft")}
    typed = [places.get(word, word) for word in RUNS[name].split()]
    ended = CliRunner().invoke(
        group, [*name.split(), *typed, "--json"], input="Wisła jest\n", catch_exceptions=False
    )
    assert ended.exit_code == 0, ended.output
    assert isinstance(json.loads(ended.stdout), dict)


def _prepare(name: str, folder: Path) -> None:
    """What a command reads, where the test of another command has not made it in this process."""
    table = folder / "tables" / "target" / "pl.dictionary.tok"
    if name.startswith("tables") and not table.exists():
        table.parent.mkdir(parents=True)
        built = f"--target {DEMO / 'target'} --dictionary-only a.txt --language pl --output tables"
        assert not CliRunner().invoke(group, ["build", *built.split()]).exit_code
    if name == "tables pull" and not (folder / "model" / "tokalign").exists():
        (folder / "model" / "tokalign").mkdir()
        shutil.copy(table, folder / "model" / "tokalign")
    if name == "tables forget":
        learned = ["learn", "notes", "--name", "notes", "--target", str(DEMO / "target")]
        assert not CliRunner().invoke(group, learned).exit_code


def test_the_reference_is_current() -> None:
    """Else: python docs/command_reference.py > docs/commands.md"""
    assert (ROOT / "docs" / "commands.md").read_text("utf-8") == reference()


@pytest.mark.parametrize(("name", "most"), [("decode", 25), ("serve", 30)])
def test_help_fits_one_screen(name: str, most: int) -> None:
    lines = CliRunner().invoke(group, [name, "--help"], terminal_width=80).stdout.splitlines()
    assert len(lines) <= 50
    assert sum(line.startswith("  -") for line in lines) <= most
