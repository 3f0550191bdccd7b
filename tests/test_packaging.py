"""What a release says of itself: its Homebrew formula, and what its extras bring."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

from huggingface_hub import get_session
from packaging.requirements import Requirement
from places import ROOT

import tokalign


def test_the_formula_names_the_archive_and_its_digest(tmp_path: Path) -> None:
    archive = tmp_path / f"tokalign-{tokalign.__version__}.tar.gz"
    archive.write_bytes(b"sources")
    command = [sys.executable, ROOT / "packaging" / "formula.py", archive]
    made = subprocess.check_output(command, text=True)
    assert sha256(b"sources").hexdigest() in made
    assert f"/tokalign-{tokalign.__version__}.tar.gz" in made
    assert 'system libexec/"bin/pip", "install", "#{buildpath}[mlx]"' in made
    openings = sum(
        line.strip().startswith(("class", "def", "test do")) for line in made.splitlines()
    )
    assert made.count("\n  end\n") + made.count("\nend\n") == openings
    if ruby := shutil.which("ruby"):
        subprocess.run([ruby, "-c"], input=made, text=True, check=True)


def test_corpora_on_the_web_take_no_more_than_their_extra() -> None:
    """fsspec opens https:// with aiohttp, which its extra `http` has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = map(Requirement, project["optional-dependencies"]["corpora"])
    assert {one.name: one.extras for one in wanted}["fsspec"] == {"http"}


def test_the_hubs_library_can_read_a_part_of_a_file() -> None:
    """`hub.read_part` streams, which the sessions of versions before 1 cannot."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    floors = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert not floors["huggingface_hub"].contains("0.36.2")
    assert callable(get_session().stream)
