"""Arguments and paths as they come from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tokalign.build.sources import find_sources
from tokalign.cli import group
from tokalign.errors import BundleError, CorpusError, TokalignError, UsageError
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.cost.curve import read_curve
from tokalign.runtime.options import DraftingOptions
from tokalign.storage import as_path, parse_json
from tokalign.tables.drafter_files import read_drafter_config

NOBODY = "~no-such-user/x"


def test_a_home_is_expanded_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ala")
    assert as_path("~/kot") == Path("/home/ala/kot")
    assert as_path(NOBODY) == Path(NOBODY)
    with pytest.raises(TokalignError, match=NOBODY):
        read_curve(NOBODY)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(UsageError, match="is empty"):
        as_path("")
    for name in ("dictionary", "alignment", "drafter"):
        with pytest.raises(UsageError, match=f"{name} is empty"):
            DraftingOptions(**{name: ""})  # type: ignore[arg-type]
    for read in (resolve_tokenizer, resolve_model, read_curve):
        with pytest.raises(UsageError, match="is empty"):
            read("")
    with pytest.raises(CorpusError, match="is empty"):
        find_sources([""])


@pytest.mark.parametrize(
    "line",
    [
        f"decode --target {NOBODY} -p x",
        f"decode --target bielik -p @{NOBODY}",
        f"build --target {NOBODY} --dictionary-only",
        f"learn --name notes --target {NOBODY} .",
        f"tables pull {NOBODY}",
    ],
)
def test_a_home_of_nobody_is_a_path_that_is_not_there(line: str) -> None:
    error = CliRunner().invoke(group, line.split()).exception
    assert isinstance(error, TokalignError), error
    assert "~no-such-user" in str(error)


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
    with pytest.raises(UsageError, match="nested too deeply"):
        read_curve(str(path))
