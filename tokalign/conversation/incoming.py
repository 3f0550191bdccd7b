"""Reading a text while it is written: parsers are generators that wait for more of it.

A parser yields a text that it has made, or None where it needs more input. Parsers call each other
with `yield from`. However the input is cut, the output is the same. Read next: `values.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from tokalign.runtime.held_back import held_back

T = TypeVar("T")

Reading: TypeAlias = Generator[str | None, None, T]
"""A parser: it yields texts, and None where it waits; it returns a T."""

Waiting: TypeAlias = Generator[None, None, T]
"""A parser that yields no texts."""


class UnreadableError(Exception):
    """The text is not what a parser reads."""


class CutOffError(UnreadableError):
    """The text ends too early for a parser."""


class Incoming:
    """A text that arrives in parts. ended: whether it is complete."""

    def __init__(self) -> None:
        self._text, self._at, self.ended = "", 0, False
        self._kept: int | None = None

    def add(self, text: str) -> None:
        begin = self._at if self._kept is None else self._kept
        self._text = self._text[begin:] + text
        self._at -= begin
        self._kept = None if self._kept is None else 0

    def keep(self) -> None:
        self._kept = self._at

    def go_back(self) -> None:
        """Read again from where `keep` was called."""
        assert self._kept is not None
        self._at = self._kept

    def give_back(self, text: str) -> None:
        """Read a text again that has just been taken."""
        self._at -= len(text)

    def forget(self) -> None:
        self._kept = None

    @property
    def is_done(self) -> bool:
        """Whether everything has been read."""
        return self.ended and self._at == len(self._text)

    def peek(self, count: int = 1) -> Waiting[str]:
        """The next `count` characters, fewer at the end. They are not taken."""
        while len(self._text) - self._at < count and not self.ended:
            yield
        return self._text[self._at : self._at + count]

    def take(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """As many characters as match a pattern of single characters."""
        while True:
            match = pattern.match(self._text, self._at)
            end = self._at if match is None else match.end()
            if end < len(self._text) or self.ended:
                taken, self._at = self._text[self._at : end], end
                return taken
            yield

    def space(self) -> Waiting[str]:
        return (yield from self.take(_SPACE))

    def expect(self, *texts: str, or_end: bool = False) -> Waiting[str]:
        """Take the first of these texts that fits. or_end: or "" at the end of the text. Raises:
        UnreadableError, CutOffError."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            for text in texts:
                if rest.startswith(text):
                    self._at += len(text)
                    return text
            if not any(text.startswith(rest) for text in texts):
                raise UnreadableError
            if self.ended:
                if or_end:
                    self._at = len(self._text)
                    return ""
                raise CutOffError
            yield

    def mark(self, *texts: str, or_end: bool = False) -> Waiting[str]:
        """As `expect`, after white space."""
        yield from self.space()
        return (yield from self.expect(*texts, or_end=or_end))

    def following(self) -> Waiting[str]:
        """The next character that is no white space. It is not taken; what is before it is."""
        yield from self.space()
        return (yield from self.peek())

    def until(self, *marks: str) -> Waiting[str]:
        """Take the text before the first of these marks, and the mark. Raises: CutOffError."""
        text, mark = yield from collected(self.pieces(*marks))
        if not mark:
            raise CutOffError
        return text

    def pieces(self, *marks: str, written: Callable[[str], str] = str) -> Reading[str]:
        """The text before the first of these marks, `written` in some form. Returns: the mark,
        which is taken too; "" where the text ends without one."""
        find = _finder(marks)
        while True:
            match = find.search(self._text, self._at)
            end = len(self._text) if match is None else match.start()
            if match is None and not self.ended:
                end -= held_back(self._text[self._at :], marks)
            if end > self._at:
                piece, self._at = self._text[self._at : end], end
                yield written(piece)
            if match is not None:
                self._at = match.end()
                return match[0]
            if self.ended:
                return ""
            yield None


_SPACE = re.compile(r"\s*")


@lru_cache(64)
def _finder(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def collected(parser: Reading[T]) -> Waiting[tuple[str, T]]:
    """All that a parser yields, in one text, and what it returns."""
    texts: list[str] = []
    while True:
        try:
            text = next(parser)
        except StopIteration as stopped:
            return "".join(texts), stopped.value
        if text is None:
            yield
        else:
            texts.append(text)
