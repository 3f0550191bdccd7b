"""Markdown on a terminal as it streams: headings, bold, lists, code and tables.

Nothing is ever repainted. A word is held back until it ends, which decides every mark in it; a line
of code until it ends, so that Pygments finds its words; a table until its last row, for rich. All
other Markdown stays as it was written. Inline styles end with their line: what a model forgot to
close spoils one line and no more.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from os import get_terminal_size

from tokalign.cli.output import RESET

_WIDE = r"\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60"
_UNIT = re.compile(rf"([^ \t\n{_WIDE}]*)([ \t\n{_WIDE}])")
"""A word and what ends it. Wide characters, such as Chinese ones, are words of their own."""

_PART = re.compile(r"`+|\*+|[^`*]+")
_PART_OF_CODE = re.compile(r"`+|[^`]+")
_FENCE = re.compile(r"(`{3,}|~{3,})[^`]*")
_HEADING = re.compile(r"#{1,6}")
_ITEM = re.compile(r"[-*+]|\d{1,9}[.)]")

_BOLD, _CODE = "\x1b[1m", "\x1b[36m"
_MOST_LINES = 100
"""Lines before a line of code with which its words are found."""

_LEAST_WIDTH = 20
"""A terminal narrower than this breaks lines itself."""


class Markdown:
    """Renders Markdown. Example: "**Wisła** is" becomes bold "Wisła" and plain " is". width: of the
    terminal in cells."""

    def __init__(self, width: Callable[[], int]) -> None:
        from rich.cells import cell_len

        self._width, self._cells = width, cell_len
        self._held, self._fence, self._rows = "", "", ""
        self._code_block = _Code("")
        self._begin_line()

    def push(self, text: str) -> str:
        """Add text. Returns: what can be written now."""
        self._held += text
        end, shown = 0, ""
        for unit in _UNIT.finditer(self._held):
            shown, end = shown + self._take(unit[1], unit[2]), unit.end()
        self._held = self._held[end:]
        return shown

    def finish(self) -> str:
        """The remaining text."""
        word, self._held = self._held, ""
        return self._take(word, "") + self._code_block.line(self._line) + self._table()

    def _begin_line(self) -> None:
        self._column = self._indent = 0
        self._at_start, self._is_heading, self._is_skipped = True, False, False
        self._is_bold, self._code, self._space, self._previous = False, "", "", "\n"
        self._line, self._is_row = "", False

    def _take(self, word: str, end: str) -> str:
        """Render a word and the space, line end or wide character after it."""
        if end and not end.isspace():
            word, end = word + end, ""
        if not self._fence and (self._is_row or (self._at_start and word.startswith("|"))):
            self._rows, self._is_row = self._rows + word + end, end != "\n"
            return ""
        before = self._table() if word or end == "\n" else ""
        return before + self._take_line(word, end)

    def _table(self) -> str:
        """The rows of a table that has ended, as rich draws them."""
        rows, self._rows = self._rows, ""
        if not rows:
            return ""
        from rich.console import Console
        from rich.markdown import Markdown as Document

        width = max(_LEAST_WIDTH, self._width())
        console = Console(file=StringIO(), width=width, force_terminal=True)
        console.print(Document(rows))
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in drawn.split("\n"))

    def _take_line(self, word: str, end: str) -> str:
        shown = self._begin_block(word, end)
        if shown is None:
            shown = self._inline(word) if word else ""
            self._space += end
            self._at_start = self._at_start and not word
            self._previous = end or self._previous
        if end == "\n":
            shown += "" if self._is_skipped else end
            self._begin_line()
        return shown

    def _begin_block(self, word: str, end: str) -> str | None:
        """Render what begins a line, or code; None for the words of a paragraph."""
        if self._is_skipped:  # the rest of a fence's line
            return ""
        if self._fence:
            return self._code_line(word, end)
        if not self._at_start:
            return None
        if fence := _FENCE.fullmatch(word):
            self._fence, self._is_skipped = fence[1], True
            self._code_block = _Code(word.removeprefix(fence[1]))
            return "\n" if self._indent else ""  # the block begins after the number of a list item
        if end == " " and _HEADING.fullmatch(word):
            self._is_heading, self._at_start, self._space = True, False, ""
            return ""
        if end == " " and _ITEM.fullmatch(word):
            shown = f"{self._space}{word if word[0].isdigit() else '•'} "
            self._column += len(shown)
            self._indent, self._space = self._column, ""
            return shown
        return None

    def _code_line(self, word: str, end: str) -> str:
        if self._at_start and word.startswith(self._fence) and not word.strip(self._fence[0]):
            self._fence, self._line, self._is_skipped = "", "", True
            return ""
        self._line += word + end.strip("\n")
        self._at_start = self._at_start and not word
        return self._code_block.line(self._line) if end == "\n" else ""

    def _inline(self, word: str) -> str:
        """Render a word, on a new line if it does not fit on this one."""
        shown, plain, at = "", "", 0
        while part := (_PART_OF_CODE if self._code else _PART).match(word, at):
            at, text = part.end(), part[0]
            if text[0] == "`" and self._code in ("", text):
                self._code = "" if self._code else text
            elif text == "**" and not self._code and self._is_mark(word[at : at + 1]):
                self._is_bold = not self._is_bold
            else:
                style = _CODE if self._code else _BOLD * (self._is_bold or self._is_heading)
                shown += f"{style}{text}{RESET}" if style else text
                plain += text
            self._previous = text[-1]
        if not plain:
            return shown
        space, self._space = self._space, ""
        self._column += len(space) + self._cells(plain)
        if self._column > self._width() >= _LEAST_WIDTH and self._column > self._indent:
            space = "\n" + " " * self._indent
            self._column = self._indent + self._cells(plain)
        return space + shown

    def _is_mark(self, following: str) -> bool:
        """Whether ** begins or ends bold words. It does neither in 2**3."""
        if self._is_bold:
            return not self._previous.isspace()
        in_word = self._previous.isascii() and self._previous.isalnum()
        return bool(following) and not in_word


class _Code:
    def __init__(self, language: str) -> None:
        from pygments.lexers import find_lexer_class_by_name
        from pygments.util import ClassNotFound

        self._lexer, self._lines = None, list[str]()
        with suppress(ClassNotFound):
            if language:
                self._lexer = find_lexer_class_by_name(language)(stripnl=False, ensurenl=False)

    def line(self, text: str) -> str:
        """The next line, which is read after the ones before it."""
        if self._lexer is None or not text.strip():
            return f"{_CODE}{text}{RESET}" if text.strip() else ""
        from pygments import highlight
        from pygments.formatters import TerminalFormatter

        self._lines = [*self._lines[-_MOST_LINES:], text]
        shown: str = highlight("\n".join(self._lines), self._lexer, TerminalFormatter())
        return shown.split("\n")[len(self._lines) - 1]


def for_terminal() -> Markdown | None:
    """Markdown of the width of stdout; None if that is no terminal, or one without styles."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain or not sys.stdout.isatty():
        return None
    # Asked for at every word: a window may be resized. COLUMNS is what it was when a shell began.
    return Markdown(lambda: get_terminal_size(sys.stdout.fileno()).columns)
