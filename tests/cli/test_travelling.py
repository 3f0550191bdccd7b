"""Tables are pushed into a folder of their repository, and described without being believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_tables import write_dictionary
from small_tokenizers import of_merges

from tokalign.cli.travelling import model_card, push_tables
from tokalign.errors import UsageError
from tokalign.tables.bundle import decode_bundle, write_bundle
from tokalign.tokenizer.tokenizer import Tokenizer

TARGET: Tokenizer[Any] = of_merges(b"abc ", [(b"a", b"b"), (b"ab", b"c")])


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    return write_dictionary(tmp_path / "pl.dictionary.tok", TARGET, " abc abc")


@pytest.mark.parametrize("folder", ["", ".", "..", ".hidden", "a/b", "/a"])
def test_a_folder_is_one_at_the_top_level(tmp_path: Path, dictionary: Path, folder: str) -> None:
    """An empty name would make the path an absolute one."""
    with pytest.raises(UsageError, match="top level"):
        push_tables([dictionary], str(tmp_path), folder=folder)
    assert list(tmp_path.iterdir()) == [dictionary]


def test_no_header_writes_more_than_its_cell_of_a_card(tmp_path: Path, dictionary: Path) -> None:
    bundle = decode_bundle(dictionary.read_bytes(), name="pl")
    file = {
        "name": "a\x1b[2J | b\n# <img src=x>",
        "weight": 1.0,
        "bytes": 1,
        "sha256": "0" * 64,
        "text_bytes": 1,
        "lines": 1,
        "skipped": 0,
    }
    write_bundle(dictionary, replace(bundle, corpus={"files": [file]}))
    (tmp_path / "model").mkdir()
    _, tables = push_tables([dictionary], str(tmp_path / "model"))
    card = model_card(tables, "someone/model")
    assert "\x1b" not in card
    assert "<img" not in card
    rows = [line for line in card.splitlines() if line.startswith("| `")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 7
    assert not [line for line in card.splitlines() if line.startswith("# ")]
