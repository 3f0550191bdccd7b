"""A table whose header is whole but whose content is damaged is refused before any look-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokalign.errors import BundleError
from tokalign.tables import finding
from tokalign.tables.bundle import Bundle, write_bundle
from tokalign.tables.dictspec import Continuations
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def damaged(tmp_path: Path, bielik: Tokenizer[Any]) -> Path:
    table = Continuations.from_entries({(1, 2): ((3,), 0.5)}, 32_000)  # type: ignore[dict-item]
    path = tmp_path / "pl.dictionary.tok"
    fingerprints = {"target": bielik.fingerprint}
    write_bundle(
        path,
        Bundle(kind="dictionary", fingerprints=fingerprints, sections=table.to_sections()),
    )
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    return path


def test_named_by_the_user(damaged: Path, bielik: Tokenizer[Any]) -> None:
    with pytest.raises(BundleError, match=r"pl\.dictionary\.tok is damaged.*tokalign build"):
        open_dictionary(bielik, file=damaged)


def test_found_in_the_catalogue(damaged: Path, bielik: Tokenizer[Any]) -> None:
    with pytest.raises(BundleError, match=r"pl\.dictionary\.tok is damaged.*tokalign build"):
        finding.find_table("dictionary", target=bielik.fingerprint, beside=damaged.parent)
