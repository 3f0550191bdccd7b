"""What a person types into a conversation: entries of a terminal or of stdin, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, Self, TextIO

from platformdirs import user_state_path

from tokalign.cli.dialogue import BLOCK, COMMANDS, EntryLines
from tokalign.cli.output import reading_stdin
from tokalign.installation import needing
from tokalign.storage import writing_to

PROMPT, MORE = "> ", "… "


class StreamEntries:
    """The lines of a file or a pipe; nothing is shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    is_edited = False

    def read(self, begun: str = "") -> str | None:
        """The next entry; None at the end."""
        lines = EntryLines()
        with reading_stdin("give messages in a file or a pipe, one per line, or open a terminal"):
            for line in self._stream:
                # Some editors begin a file with a mark.
                line = line.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
                entry = lines.push(line)
                if entry is not None:
                    return entry
        return lines.finish()


class EditedEntries:
    """A terminal, edited with prompt_toolkit. history: a file that entries are kept in, or None."""

    def __init__(self, history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings

        class History(FileHistory):  # type: ignore[misc]
            def store_string(self, string: str) -> None:
                with suppress(OSError):  # of a disk that is full by now: the entry is still read
                    super().store_string(string)

        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        # A prompt stands apart from the answer before it.
        self._prompt = FormattedText([("", "\n"), ("bold ansigreen", PROMPT)])
        self._session: Any = PromptSession(
            history=InMemoryHistory() if history is None else History(_private(history)),
            key_bindings=keys,
            completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
            complete_while_typing=False,
            prompt_continuation=MORE,
        )

    is_edited = True

    def read(self, begun: str = "") -> str | None:
        """The next entry, which begins with `begun`; None at the end. Raises: KeyboardInterrupt."""
        lines = EntryLines()
        try:
            while True:
                prompt = MORE if lines.is_open else self._prompt
                text: str = self._session.prompt(prompt, default=begun)
                begun = ""
                if "\n" in text and not lines.is_open:
                    is_block = text.startswith(BLOCK) and text.endswith(BLOCK)
                    return text[len(BLOCK) : -len(BLOCK)].strip("\n") if is_block else text
                entry = lines.push(text)
                if entry is not None:
                    return entry
        except EOFError:
            return lines.finish()


Entries = StreamEntries | EditedEntries


def open_entries(*, keeps: bool) -> Entries:
    """Line editing if stdin and stdout are a terminal, else plain lines. keeps: a history. Raises:
    MissingAssetError without prompt_toolkit; UsageError or OutputError for the history's file."""
    if not _is_terminal():
        if isinstance(sys.stdin, TextIOWrapper):  # `read_entry` refuses the line, not all of them
            sys.stdin.reconfigure(errors="surrogateescape")
        return StreamEntries(sys.stdin)
    needs = "line editing needs prompt_toolkit, which is not installed; install it"
    with needing(needs, extra="mlx"):
        return EditedEntries(history_file() if keeps else None)


def history_file() -> Path:
    """What was typed at terminals."""
    return user_state_path("tokalign", appauthor=False) / "chat-history"


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _private(path: Path) -> str:
    """The name of a file, made if necessary, that only its owner may read."""
    with writing_to(path, "keep no history, with --no-history"):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    return str(path)


class Interrupts:
    """Ctrl-C while the body runs, counted. The first one asks for the end of the answer, the second
    one ends it at once."""

    count = 0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises: KeyboardInterrupt if Ctrl-C was pressed; by then a step of a prompt is done."""
        if self.count:
            raise KeyboardInterrupt


@contextmanager
def typing_hidden() -> Iterator[None]:
    """Do not echo what is typed while the body runs; the next entry begins with it."""
    if not _is_terminal():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    hidden = [*before]
    hidden[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, hidden)
    try:
        yield
    finally:
        with suppress(termios.error):  # of a terminal that was closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
