"""The Homebrew formula of a release names its archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

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
