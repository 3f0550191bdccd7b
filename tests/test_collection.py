"""Every test file is run: none hides from pytest's collection."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest
from places import ROOT


def test_every_test_file_is_collected(pytestconfig: pytest.Config) -> None:
    """A plain pytest run enters every folder of tests, also tests/build/, a default to skip."""
    files = [*(ROOT / "tests").rglob("test_*.py")]
    folders = {part for path in files for part in path.relative_to(ROOT).parts[:-1]}
    skipped = pytestconfig.getini("norecursedirs")
    assert "build" in folders
    assert [one for one in folders if any(fnmatch(one, pattern) for pattern in skipped)] == []
