"""Entries typed into a real line editor, without a terminal, and lines of a stream."""

from __future__ import annotations

import os
import select
import termios
from collections.abc import Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from tokalign.cli.dialogue import read_entry
from tokalign.cli.entries import EditedEntries, StreamEntries, open_entries, typing_hidden
from tokalign.errors import UsageError

ENTER, ESCAPE, CTRL_C, CTRL_D = "\r", "\x1b", "\x03", "\x04"


def pasted(text: str) -> str:
    """What a terminal sends when a text is pasted."""
    return f"\x1b[200~{text}\x1b[201~"


def typed(keys: str, history: Path | None = None, begun: str = "") -> Iterator[str | None]:
    """The entries of somebody who types `keys` and then nothing more; the first is `begun`."""
    pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        keyboard.send_text(keys)
        entries = EditedEntries(history)
        entry = entries.read(begun)
        while entry is not None:
            yield entry
            entry = entries.read()


def test_lines_of_a_stream() -> None:
    entries = StreamEntries(StringIO('\ufeffAla\r\nma \\\nkota\n\n"""\n/reset\n"""\nkoniec'))
    found = []
    while (entry := entries.read()) is not None:
        found.append(entry)
    assert found == ["Ala", "ma \nkota", "", "/reset", "koniec"]


@pytest.mark.parametrize("locale", ["strict", "surrogateescape"])
def test_a_line_that_is_not_utf8_is_refused_and_the_next_one_is_read(
    locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """locale: how Python's stdin treats such bytes, which depends on the locale."""
    stdin = TextIOWrapper(BytesIO(b"z\xffa\ndobra\n"), encoding="utf-8", errors=locale)
    monkeypatch.setattr("sys.stdin", stdin)
    entries = open_entries(keeps=False)
    first, second = entries.read(), entries.read()
    assert first is not None
    with pytest.raises(UsageError, match="not UTF-8"):
        read_entry(first)
    assert second == "dobra"


def test_a_history_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--no-history"):
        EditedEntries(tmp_path / "file" / "chat-history")


def test_enter_sends_and_escape_enter_begins_a_line() -> None:
    keys = f"Ala{ENTER}ma{ESCAPE}{ENTER}kota{ENTER}a \\{ENTER}psa{ENTER}{CTRL_D}"
    assert list(typed(keys)) == ["Ala", "ma\nkota", "a \npsa"]


def test_pasted_lines_are_one_entry() -> None:
    keys = pasted("Ala\nma\nkota") + ENTER + pasted('"""\n/reset\n"""') + ENTER + CTRL_D
    assert list(typed(keys)) == ["Ala\nma\nkota", "/reset"]


def test_entries_are_kept_for_the_next_time(tmp_path: Path) -> None:
    history = tmp_path / "state" / "history"
    assert list(typed(f"Zażółć{ENTER}{CTRL_D}", history)) == ["Zażółć"]
    assert list(typed(f"gęślą{ENTER}{CTRL_D}", history)) == ["gęślą"]
    assert history.stat().st_mode & 0o777 == 0o600
    from prompt_toolkit.history import FileHistory

    assert list(FileHistory(str(history)).load_history_strings()) == ["gęślą", "Zażółć"]
    list(typed(f"jaźń{ENTER}{CTRL_D}"))
    assert "jaźń" not in history.read_text("utf-8")


def test_an_entry_is_read_where_the_history_cannot_be_written_any_more(tmp_path: Path) -> None:
    entries = typed(f"Ala{ENTER}ma{ENTER}{CTRL_D}", history := tmp_path / "history")
    assert next(entries) == "Ala"
    history.unlink()
    history.mkdir()
    assert list(entries) == ["ma"]


def test_a_message_is_opened_again() -> None:
    keys = f" ma\x7f\x7fje{ENTER}kota{ENTER}{CTRL_D}"
    assert list(typed(keys, begun="Ala")) == ["Ala je", "kota"]


def test_ctrl_c_gives_up_a_line() -> None:
    keys = typed(f"Ala{CTRL_C}")
    with pytest.raises(KeyboardInterrupt):
        next(keys)


def test_an_input_that_cannot_be_read_is_said() -> None:
    with Path(os.devnull).open("w") as closed, pytest.raises(UsageError, match="stdin cannot be"):
        StreamEntries(closed).read()


def test_what_is_typed_during_an_answer_is_not_shown_and_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person, terminal = os.openpty()
    with os.fdopen(terminal, encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        monkeypatch.setattr("sys.stdout", stream)
        with typing_hidden():
            os.write(person, b"Ala\n")
            assert select.select([terminal], [], [], 10)[0]  # a pty takes what is typed by and by
            assert not termios.tcgetattr(terminal)[3] & termios.ECHO
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
        assert stream.readline() == "Ala\n"
        os.write(terminal, b".")
        assert os.read(person, 100) == b"."
    os.close(person)


def test_a_terminal_that_is_closed_while_an_answer_comes_ends_the_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ends it is SIGHUP, and not that the terminal shows no more what is typed."""
    person, terminal = os.openpty()

    def answer() -> None:
        with typing_hidden():
            os.close(person)
            raise SystemExit(129)

    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdin)
        with pytest.raises(SystemExit):
            answer()
