"""JSON of others is read, or is a ValueError that its readers tell in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokalign.cli.dialogue import Dialogue
from tokalign.cost.curve import read_curve
from tokalign.errors import BundleError, UsageError
from tokalign.evaluate.recorded_proposals import read_trace
from tokalign.json_text import parse_json
from tokalign.tables.drafter_files import read_drafter_config

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), "{", b"\xff", "", "nonsense"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # each reader says what it expected
        parse_json(text)


def test_readers_of_strangers_files_tell_of_deep_nesting_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(DEEP)
    with pytest.raises(BundleError, match="is no JSON"):
        read_drafter_config(tmp_path)
    for read in (read_trace, lambda path: read_curve(str(path))):
        with pytest.raises(UsageError, match="nested too deeply"):
            read(path)


@pytest.mark.parametrize("text", [DEEP, '[{"role": "user", "content": "\\ud83d"}]'])
def test_a_conversation_that_no_model_could_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no saved conversation"):
        Dialogue.from_json(text, name="a.json")
