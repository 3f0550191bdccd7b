"""Text on a terminal as it comes: wrapped between words, and Markdown while it streams.

What is pushed comes back as what is to be written; nothing is ever repainted. Words are held back
until they end. The result does not depend on how the text was cut into pieces.

Of Markdown, headings, bold, italics, code, lists, quotes and rules are shown; all else stays as it
was written. A mark is decided by the character after it, so nothing is held back for longer than a
word, a mark or the fence of a block of code. Inline styles end with their line: what a model forgot
to close spoils one line and no more.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from tokalign.cli.output import RESET

_LEAST_WIDTH = 20
"""A terminal narrower than this breaks lines itself."""

_Run = list[tuple[str, str]]


class View:
    """Text as it is, for a file or a pipe; what shows it in another way is a subclass."""

    def push(self, text: str, style: str = "") -> str:
        """Add text. Returns: what can be written now. style: an escape sequence, or nothing."""
        return f"{style}{text}{RESET}" if style and text else text

    def finish(self) -> str:
        """What is left."""
        return ""


class Wrapper(View):
    """Breaks lines between words.

    width: of the terminal in cells; asked for at every word, because a window may be resized.
    indent: how many cells lines begin with that go on from the one before.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        from rich.cells import cell_len

        self._width, self._cells = width, cell_len
        self._column = 0
        self._space: _Run = []
        self._word: _Run = []
        self._style = ""
        self._out: list[str] = []
        self.indent = 0

    def push(self, text: str, style: str = "") -> str:
        self.add(text, style)
        return self.taken()

    def add(self, text: str, style: str = "") -> None:
        """Add text to what `taken` returns next."""
        for character in text:
            self._take(character, style)

    def verbatim(self, text: str, style: str = "") -> None:
        """The same for text that is not broken, such as a line of code."""
        self._end_word()
        self._emit([*self._space, (text, style)])
        self._space = []
        self._column += self._cells(text)
        if text.endswith("\n"):
            self._column = self.indent = 0

    def finish(self) -> str:
        self._end_word()
        self._space = []
        self._change_style("")
        self._column = self.indent = 0
        return self.taken()

    def _take(self, character: str, style: str) -> None:
        if character == "\n":
            self._end_word()
            self._space = []
            self._emit([(character, "")])
            self._column = self.indent = 0
        elif character in " \t":
            self._end_word()
            self._space.append((character, style))
        else:
            wide = self._cells(character) > 1  # a line may be broken before it and after it
            if wide:
                self._end_word()
            self._word.append((character, style))
            if wide:
                self._end_word()

    def _end_word(self) -> None:
        if not self._word:
            return
        width = self._width()
        size, space = (self._cells("".join(c for c, _ in run)) for run in (self._word, self._space))
        if self._column + space + size > width >= _LEAST_WIDTH and self._column > self.indent:
            self._emit([("\n" + " " * self.indent, "")])
            self._column = self.indent
        else:
            self._emit(self._space)
            self._column += space
        self._emit(self._word)
        self._column = (
            (self._column + size) % max(1, width) if size > width else self._column + size
        )
        self._space, self._word = [], []

    def _emit(self, run: _Run) -> None:
        for text, style in run:
            self._change_style(style)
            self._out.append(text)

    def _change_style(self, style: str) -> None:
        if style != self._style:
            self._out.append(RESET * bool(self._style) + style)
            self._style = style

    def taken(self) -> str:
        """What can be written now."""
        out, self._out = "".join(self._out), []
        return out


# -- Markdown -------------------------------------------------------------------------------------

_BOLD, _ITALIC = 1, 2
_EMPHASIS = {1: _ITALIC, 2: _BOLD, 3: _BOLD | _ITALIC}
"""What so many equal marks begin or end."""
_CODE = "\x1b[36m"
_UNDECIDED = re.compile(
    r" *(#{0,6}|\d{0,9}[.)]?|[+>]|-*|\**|_*|`{0,2}|~{0,2}|(`{3,}|~{3,})[^`\n]*)"
)
"""Beginnings of a line that may still become one of these."""
_FENCE = re.compile(r" *(`{3,}|~{3,})[^`\n]*\n")
_RULE = re.compile(r" *(-{3,}|\*{3,}|_{3,})\n")
_HEADING = re.compile(r" {0,3}#{1,6} +")
_ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)]) ")
_QUOTE = re.compile(r" {0,3}> ?")
_ESCAPED = "*_`#\\"


class Markdown(View):
    """Renders what is pushed for a terminal of `wrapper`'s width.

    Example: "**Wisła** is" becomes bold "Wisła" and plain " is".
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper = wrapper
        self._head: str | None = ""  # the beginning of a line, until it is known what it begins
        self._fence = ""  # that of the block of code around
        self._reset_line()

    def push(self, text: str, _style: str = "") -> str:
        # Styles are Markdown's own.
        for character in text:
            self._take(character)
        return self._wrapper.taken()

    def finish(self) -> str:
        while self._head:
            self._open_line(self._head)
        self._end_marks("\n")
        self._wrapper.add("\\" * self._escaping, self._style)
        return self._wrapper.finish()

    def _reset_line(self) -> None:
        self._heading, self._active, self._code = False, 0, ""
        self._marks, self._previous, self._escaping = "", "\n", False

    def _take(self, character: str) -> None:
        if self._head is None:
            self._add(character)
            return
        self._head += character
        if not _UNDECIDED.fullmatch(self._head):
            self._open_line(self._head)

    def _open_line(self, head: str) -> None:
        self._head = None
        if self._fence:
            closes = re.fullmatch(rf" *{self._fence}+ *\n?", head)
            self._fence, head = ("", "") if closes else (self._fence, head)
            self._head = "" if closes else None
        elif found := _FENCE.fullmatch(head):
            self._fence, self._head, head = found[1], "", ""
            if self._wrapper.indent:  # the block begins after the number of a list item
                self._wrapper.add("\n")
        elif _RULE.fullmatch(head):
            self._wrapper.verbatim("─" * 20 + "\n")
            self._head, head = "", ""
        elif found := _HEADING.match(head):
            self._heading = True
            head = head[found.end() :]
        elif found := _ITEM.match(head):
            mark = "•" if found[2] in "-*+" else found[2]
            self._prefix(f"{found[1]}{mark} ", head[found.end() :])
            return
        elif found := _QUOTE.match(head):
            self._prefix("│ ", head[found.end() :])
            return
        for character in head:
            self._add(character)

    def _prefix(self, text: str, rest: str) -> None:
        """What follows a prefix may begin like a line of its own, such as a fence in a list."""
        self._wrapper.verbatim(text)
        self._wrapper.indent += len(text)
        self._head = ""
        for character in rest:
            self._take(character)

    # -- inside a line -----------------------------------------------------------------------------

    def _add(self, character: str) -> None:
        if self._fence:
            self._wrapper.verbatim(character, _CODE if character != "\n" else "")
            self._head = "" if character == "\n" else None
            return
        if self._escaping:
            self._escaping = False
            if character in _ESCAPED:
                self._put(character)
                return
            self._put("\\")
        if self._marks and character != self._marks[0]:
            self._end_marks(character)
        if character == "\n":
            self._wrapper.add("\n")
            self._reset_line()
            self._head = ""
        elif character == "`" or (character in "*_" and not self._code):
            self._marks += character
        elif character == "\\" and not self._code:
            self._escaping = True
        else:
            self._put(character)

    def _end_marks(self, following: str) -> None:
        """Decide what a run of equal marks is, once it is known what comes after it."""
        marks, self._marks = self._marks, ""
        if not marks:
            return
        if marks[0] == "`":
            if self._code in ("", marks):
                self._code = "" if self._code else marks
                self._previous = "`"
                return
        elif style := _EMPHASIS.get(len(marks), 0):
            # Stricter than CommonMark, so that 2**3, a*b*c and snake_case stay as they are.
            in_word = self._previous.isascii() and self._previous.isalnum()
            if self._active & style == style and not self._previous.isspace():
                if marks[0] == "*" or not following.isalnum():
                    self._active ^= style
                    return
            elif not (self._active & style or following.isspace() or in_word):
                self._active |= style
                return
        self._put(marks)

    def _put(self, text: str) -> None:
        self._wrapper.add(text, self._style)
        self._previous = text[-1]

    @property
    def _style(self) -> str:
        if self._code:
            return _CODE
        codes = ["1"] * (self._heading or bool(self._active & _BOLD))
        codes += ["3"] * bool(self._active & _ITALIC)
        return f"\x1b[{';'.join(codes)}m" if codes else ""


def open_view(*, markdown: bool) -> View:
    """How to lay out text on stdout. markdown: whether a terminal shows it as such."""
    if not sys.stdout.isatty():
        return View()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Markdown(Wrapper(_columns)) if markdown and not plain else Wrapper(_columns)


def _columns() -> int:
    """The width of the terminal, which may have changed."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return 80
