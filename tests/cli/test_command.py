"""Options declared as data: what one needs, what it excludes, what only `--help-all` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tokalign.cli.command import Command, FilePath, Option, flag_of
from tokalign.errors import UsageError

PARAMETERS = [
    Option("--draft", "A model.", metavar="NAME"),
    Option("--method", "How.", default="auto"),
    Option("-s --size", "How much.", type=int, default=3, needs=("--draft", "--elsewhere")),
    Option("--tables", "What.", type=int, excludes=("--method copy", "--json"), rare=True),
    Option("--loud/--silent", "With noise.", default=False, needs="FILE"),
    Option("--alone", "A condition on no option of these.", type=int, needs="--elsewhere"),
    Option("--page", "A page.", type=FilePath(".html")),
    click.Argument(["files"], nargs=-1, metavar="[FILE]..."),
]


@click.command("small", cls=Command, params=[*PARAMETERS])
def small(**given: Any) -> None:
    """Do a little."""
    assert set(given) >= {"as_json", "quiet", "size", "files"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(small, arguments)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            "--size 4",
            "--size does nothing without --draft NAME; give that too, or leave",
        ),
        ("-s 4", "--size does nothing without --draft NAME"),
        ("--loud", "--loud does nothing without FILE"),
        ("--tables 1 --method copy", "--tables does nothing with --method copy; leave one of them"),
        ("--tables 1 --json", "--tables does nothing with --json"),
    ],
)
def test_an_option_without_effect_is_refused(typed: str, told: str) -> None:
    error = run(*typed.split()).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(told)


LET_PASS = """
--size 4 --draft d
--size 3
--silent
--loud a.txt
--tables 1
--tables 0 --json
--alone 4
--method copy --json --quiet
"""


@pytest.mark.parametrize("typed", LET_PASS.split("\n"))
def test_what_has_an_effect_or_asks_for_nothing_is_let_pass(typed: str) -> None:
    assert run(*typed.split()).exit_code == 0


def test_rare_options_are_shown_on_request() -> None:
    usual, whole = run("--help").stdout, run("--help-all").stdout
    assert "--tables" not in usual
    assert "--help-all" in usual
    assert "--tables" in whole
    assert "Do a little." in whole


def test_options_are_named_as_they_are_typed_in_full() -> None:
    assert [flag_of(one) for one in PARAMETERS][2:5] == ["--size", "--tables", "--loud"]
    assert flag_of(PARAMETERS[-1]) == "FILE"


def test_a_file_of_another_kind_is_never_overwritten(tmp_path: Path) -> None:
    result = run("--page", str(tmp_path / "run.json"))
    assert result.exit_code == 2
    assert "does not end in .html" in result.stderr
    assert run("--page", str(tmp_path / "run.html")).exit_code == 0
