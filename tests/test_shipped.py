"""What comes with tokalign is found in a checkout, and the wheel has it under the same names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from places import ROOT

from tokalign import shipped as module
from tokalign.errors import MissingAssetError
from tokalign.shipped import CORPUS, PROMPTS, TABLES, shipped

NAMES = (CORPUS, PROMPTS, TABLES)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkout_has_them_at_the_top(name: str) -> None:
    assert shipped(name) == ROOT / name


@pytest.mark.parametrize("name", NAMES)
def test_the_wheel_is_told_to_hold_them(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all(place == f"tokalign/data/{source}" for source, place in included.items())
    assert any(name == source or name.startswith(source + "/") for source in included)


def test_an_installation_is_read_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INSTALLED", tmp_path)
    with pytest.raises(
        MissingAssetError, match=r"tables, which comes with .*pip install"
    ) as caught:
        shipped(TABLES)
    assert "\n" not in str(caught.value)
    (tmp_path / TABLES).mkdir()
    assert shipped(TABLES) == tmp_path / TABLES


def test_every_public_corpus_says_where_it_is_and_what_it_costs() -> None:
    manifest = tomllib.loads((ROOT / "corpora" / "manifest.toml").read_text("utf-8"))["corpus"]
    fields = {"name", "language", "kind", "page", "licence", "size", "fetch", "format", "steps"}
    for entry in manifest:
        assert fields <= set(entry), entry["name"]
        assert all(entry.values()), entry["name"]
        assert entry["format"] == "txt" or "field" in entry, entry["name"]
    languages = {entry["language"].partition("-")[0] for entry in manifest}
    assert languages >= {"pl", "uk", "cs", "sk", "lt", "hu", "crh"}
    assert len({entry["name"] for entry in manifest}) == len(manifest)
