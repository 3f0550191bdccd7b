"""Text on a terminal as it comes: words stay whole at the right edge, styles are kept.

What is pushed comes back as what is to be written. Words are held back until they end. The result
does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

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
