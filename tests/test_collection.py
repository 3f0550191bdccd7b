"""Every test file is run: none hides from pytest's collection."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT


@pytest.mark.slow
def test_every_test_file_is_collected() -> None:
    """A plain pytest run collects every test file, tests/build/ (a default to skip) included."""
    run = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    collected = {line.partition(":")[0] for line in listed.splitlines()}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert files - collected == set()
