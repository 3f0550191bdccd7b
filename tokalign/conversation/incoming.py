"""A text that is read while it is written: parsers are generators that wait for more of it.

A parser yields a text that it has made, or None where it needs more than has come. Parsers call
each other with `yield from`. What has come in one part or in many is read the same.
Read next: `tool_calls.py`.
"""

from __future__ import annotations

import json
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

DEEPEST = 64
"""Levels of JSON; every one of them is a generator more that waits."""

_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')


class UnreadableError(Exception):
    """The text is not what a parser reads."""


class CutOffError(UnreadableError):
    """The text ends too early for a parser."""


class Incoming:
    """A text that comes in parts, and how far it has been read.

    ended: whether no more will come.
    """

    def __init__(self) -> None:
        self._text, self._at, self.ended = "", 0, False
        self._kept: int | None = None

    def add(self, text: str) -> None:
        """Another part of the text."""
        begin = self._at if self._kept is None else self._kept
        self._text = self._text[begin:] + text
        self._at -= begin
        self._kept = None if self._kept is None else 0

    def keep(self) -> None:
        """Remember this place."""
        self._kept = self._at

    def go_back(self) -> None:
        """Read again from the remembered place."""
        assert self._kept is not None
        self._at = self._kept

    def forget(self) -> None:
        """Free the text before this place."""
        self._kept = None

    @property
    def is_done(self) -> bool:
        """Whether everything has been read."""
        return self.ended and self._at == len(self._text)

    def peek(self, count: int = 1) -> Waiting[str]:
        """The next characters: as many as asked for, except at the end. They are not taken."""
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
        """White space, if any comes."""
        return (yield from self.take(_SPACE))

    def expect(self, *texts: str, or_end: bool = False) -> Waiting[str]:
        """Take one of these texts, the first that comes.

        or_end: whether the text may end here or inside of one of them; then nothing is returned.
        Raises: UnreadableError, CutOffError.
        """
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

    def until(self, *marks: str) -> Waiting[str]:
        """Take the text before the first of these marks, and the mark. Raises: CutOffError."""
        text, mark = yield from collected(self.pieces(*marks))
        if not mark:
            raise CutOffError
        return text

    def pieces(self, *marks: str, written: Callable[[str], str] = str) -> Reading[str]:
        """The text before the first of these marks, as it comes and as it is to be written.

        Returns: the mark, which is taken too; nothing where the text ends without one.
        """
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


# -- JSON ------------------------------------------------------------------------------------------


def json_inside(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_value(source: Incoming, depth: int = 0) -> Reading[None]:
    """One JSON value, with Python's separators. Raises: UnreadableError, CutOffError.

    Control characters in a string, which JSON does not allow, are escaped.
    """
    yield from source.space()
    begin = yield from source.peek()
    if begin == '"':
        yield from json_string(source)
    elif begin in ("{", "["):
        yield from _json_container(source, begin, depth)
    else:
        text = yield from source.take(_WORD)
        if not _SCALAR.fullmatch(text):
            raise CutOffError if source.is_done else UnreadableError
        yield text


_WORD = re.compile(r"[\w.+-]*", re.ASCII)


def _json_container(source: Incoming, begin: str, depth: int) -> Reading[None]:
    if depth > DEEPEST:
        raise UnreadableError
    yield from source.expect(begin)
    end = "}" if begin == "{" else "]"
    yield from source.space()
    following = yield from source.peek()
    if begin == "{" and following not in ('"', end):
        raise UnreadableError if following else CutOffError
    yield begin
    if following == end:
        yield (yield from source.expect(end))
        return
    while True:
        if begin == "{":
            yield from source.space()
            yield from json_string(source)
            yield from source.space()
            yield (yield from source.expect(":")) + " "
        yield from json_value(source, depth + 1)
        yield from source.space()
        mark = yield from source.expect(",", end)
        yield ", " if mark == "," else end
        if mark == end:
            return


def json_string(source: Incoming) -> Reading[None]:
    """One JSON string. Raises: UnreadableError, CutOffError."""
    yield (yield from source.expect('"'))
    while True:
        mark = yield from source.pieces('"', "\\", *_CONTROLS)
        if not mark:
            raise CutOffError
        if mark == '"':
            yield mark
            return
        if mark != "\\":
            yield json_inside(mark)
            continue
        size = 5 if (yield from source.peek()) == "u" else 1
        escape = "\\" + (yield from source.peek(size))
        if not _ESCAPE.fullmatch(escape):
            raise CutOffError if len(escape) <= size else UnreadableError
        yield from source.expect(escape[1:])
        yield escape


_CONTROLS = tuple(map(chr, range(0x20)))
