"""The command line as a whole: mistyped names, and errors as one line with an exit code."""

from __future__ import annotations

import sys

import pytest

from tokalign.cli import main


def ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str]:
    """Exit code and stderr of a run."""
    monkeypatch.setattr(sys, "argv", ["tokalign", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("--max-token", "--max-tokens"), ("--targt", "--target"), ("--logit-bias", None)],
)
def test_only_close_options_are_suggested(
    typed: str,
    suggested: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, message = ended(monkeypatch, capsys, "decode", typed, "1")
    assert code == 2
    assert typed in message
    assert ("Did you mean" in message) == (suggested is not None)
    if suggested:
        assert suggested in message


def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["decode", "--target", "no-such-model", "-p", "a"]
    code, message = ended(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message.startswith("tokalign: no-such-model is neither an alias nor a path")
    assert message.count("\n") == 1
