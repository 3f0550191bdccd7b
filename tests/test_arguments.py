"""Arguments and paths as they come from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tokalign.arguments import as_path
from tokalign.build.sources import find_sources
from tokalign.cli import group
from tokalign.cost.curve import read_curve
from tokalign.errors import CorpusError, TokalignError, UsageError
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.methods import DraftingOptions

NOBODY = "~no-such-user/x"


def test_a_home_is_expanded_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ala")
    assert as_path("~/kot") == Path("/home/ala/kot")
    assert as_path(NOBODY) == Path(NOBODY)


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


def test_so_is_the_one_of_a_curve() -> None:
    with pytest.raises(TokalignError, match="~no-such-user"):
        read_curve(NOBODY)
