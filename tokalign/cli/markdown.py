"""Markdown on a terminal: words are written as they come, and rich draws a block that has ended.

What a block looks like is known when another one begins. It is written over then, once, so nothing
flickers; one that has left the terminal, or was there before its size changed, stays as it came.
So do all on a terminal that does not tell its size, which is 0 by 0 then.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from os import get_terminal_size, terminal_size

_PADDING = re.compile(r"(?m)(?: |\x1b\[[\d;]*m +\x1b\[0m)+$")
_NOT_READ = ("entity", "escape", "html_block", "html_inline", "reference")
"""Rules of Markdown by which letters would disappear, such as the backslashes of formulas."""


class Markdown:
    """Renders Markdown. size: of the terminal, which may change."""

    def __init__(self, size: Callable[[], terminal_size]) -> None:
        from markdown_it import MarkdownIt

        self._measured, self._size = size, size()
        self._parser = MarkdownIt().enable(["strikethrough", "table"]).disable(_NOT_READ)
        self._block = ""  # what is on the terminal of the block that grows

    def push(self, text: str) -> str:
        """Add text. Returns: what is to be written now."""
        source = self._block + text
        *ended, last = self._parts(source) if "\n" in text else [source]
        written = self._drawn_over(ended, last) if ended else text
        self._block = last
        return written

    def finish(self) -> str:
        """What is to be written at the end."""
        return self._drawn_over(self._parts(self._block + "\n"), "").rstrip("\n")

    def _parts(self, source: str) -> list[str]:
        """The source of every block. A line that is not complete may still become anything."""
        complete = source[: source.rfind("\n") + 1]
        tokens = self._parser.parse(complete)
        begins = [token.map[0] for token in tokens if token.map is not None and not token.level]
        lines, places = source.split("\n"), [0, *begins[1:], None]
        return ["\n".join(lines[begin:end]) for begin, end in pairwise(places)]

    def _drawn_over(self, ended: list[str], last: str) -> str:
        """Blocks that have ended, drawn where the growing one began, and the source of the last."""
        from rich.cells import chop_cells

        before, self._size = self._size, self._measured()
        width, height = self._size
        lines = self._block.expandtabs().split("\n")
        up = sum(max(1, len(chop_cells(line, width or 1))) for line in lines) - 1
        if before != self._size or up >= height or not width:
            return "\n".join([*ended, last])[len(self._block) :]
        return f"\x1b[{up}A" * bool(up) + "\r\x1b[J" + "\n\n".join([*map(self._drawn, ended), last])

    def _drawn(self, block: str) -> str:
        from rich.console import Console
        from rich.markdown import Markdown as Document

        document = Document("", code_theme="ansi_dark", hyperlinks=False)
        document.parsed = self._parser.parse(block)
        for token in document.parsed:
            for child in token.children or ():
                if child.type == "softbreak":  # models mean the line breaks that they write
                    child.type = "hardbreak"
        console = Console(file=StringIO(), width=self._size.columns, force_terminal=True)
        console.print(document)
        drawn: str = console.file.getvalue()  # type: ignore[attr-defined]
        return _PADDING.sub("", drawn).strip("\n")


def for_terminal() -> Markdown | None:
    """Markdown of the size of stdout; None if that is no terminal, or one without styles."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain or not sys.stdout.isatty():
        return None
    # Asked for every time: a window may be resized. COLUMNS is what it was when a shell began.
    return Markdown(lambda: get_terminal_size(sys.stdout.fileno()))
