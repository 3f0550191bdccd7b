"""What comes with tokalign is found in a checkout, and the wheel has it under the same names."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize

import pytest
from places import ROOT

from tokalign import shipped as module
from tokalign.errors import MissingAssetError, UsageError
from tokalign.shipped import CORPORA, LANGUAGES, PROMPTS, TABLES, prompts, sample_text, shipped

NAMES = (CORPORA, PROMPTS, TABLES)


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


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_a_sample_text_and_prompts(language: str) -> None:
    """Of many kinds in the sample, and ten of each kind of prompt, in composed letters."""
    sample = sample_text(language).read_text("utf-8").splitlines()
    kinds = ("encyclopedic", "instructions", "questions")
    texts = [(prompts(language) / f"{kind}.txt").read_text("utf-8").splitlines() for kind in kinds]
    assert [len(lines) for lines in texts] == [10, 10, 10]
    assert len(sample) >= 24
    lines = [*sample, *(line for lines in texts for line in lines)]
    assert len(set(lines)) == len(lines)
    assert all(line == normalize("NFC", line.strip()) for line in lines)
    assert all(line.endswith("?") for line in texts[2])
    assert not any(line.endswith((".", "?", "!")) for line in texts[0])


@pytest.mark.parametrize("find", [sample_text, prompts])
def test_a_language_that_nothing_comes_in_is_an_error(find: Callable[[str], Path]) -> None:
    for language in ("crh", "../uk"):
        with pytest.raises(UsageError, match=r"only in cs, en, hu, lt, pl, sk, uk; give "):
            find(language)


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
