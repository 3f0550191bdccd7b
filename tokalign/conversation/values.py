"""Values in calls, as JSON and Python write them: models mix both languages. They are read as JSON
with Python's separators. Read next: `json_calls.py`.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Callable
from typing import TypeAlias

from tokalign.conversation.incoming import CutOffError, Incoming, Reading, UnreadableError
from tokalign.errors import is_text

Member: TypeAlias = Callable[[Incoming, str, int], Reading[None]]
"""Reads a member of a container that begins with a bracket, at a depth."""

_DEEPEST = 64
"""Levels of a value; every one of them is a generator more that waits."""

_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
_WORD = re.compile(r"[\w.+-]*")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}

_QUOTES = ('"', "'")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\n": ""}
_ESCAPES |= {mark: mark for mark in "\\'\""}
_BY_NUMBER = {"x": 2, "u": 4, "U": 8}
"""Digits of escapes that give a character's number."""


def json_inside(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value(source: Incoming, outer: str = "", depth: int = 0) -> Reading[None]:
    """A value, after its key in an object. outer: the bracket that it is in. Raises:
    UnreadableError, CutOffError."""
    if outer == "{":
        yield from source.space()
        yield from string(source)
        yield (yield from source.mark(":")) + " "
    following = yield from source.following()
    if following in ("{", "[", "("):
        yield from container(source, depth, value, _QUOTES)
    elif following in _QUOTES:
        yield from string(source)
    else:
        word = yield from source.take(_WORD)
        word = _CONSTANTS.get(word, word)
        is_json = _SCALAR.fullmatch(word) is not None
        if source.is_done and not is_json:
            raise CutOffError
        yield word if is_json else _number(word, outer)


def container(
    source: Incoming, depth: int, member: Member, keys: tuple[str, ...] = ()
) -> Reading[None]:
    """A list, a tuple or an object; a comma may come before its end. member: reads a member, with
    its key. keys: what every key of an object begins with; before it is seen, nothing is
    yielded."""
    if depth > _DEEPEST:
        raise UnreadableError
    begin = yield from source.expect("{", "[", "(")
    end = {"{": "}", "[": "]", "(": ")"}[begin]
    brackets = "[]" if begin == "(" else begin + end
    following = yield from source.following()
    if keys and begin == "{" and following not in (*keys, end):
        raise UnreadableError if following else CutOffError
    yield brackets[0]
    before = ""
    while (yield from source.following()) != end:
        yield before
        yield from member(source, begin, depth + 1)
        if (yield from source.mark(",", end)) == end:
            source.give_back(end)
            if begin == "(" and not before:  # without a comma it is no tuple
                raise UnreadableError
        before = ", "
    yield from source.expect(end)
    yield brackets[1]


def _number(word: str, outer: str) -> str:
    """A number in JSON that Python writes otherwise, such as `.5`. `07` is no number in either, but
    models write it as an argument of Python's calls. Raises: UnreadableError."""
    try:
        number = int(word) if outer == "(" and word.isdecimal() else literal_eval(word)
        if isinstance(number, int | float):  # and not complex, nor the three dots
            return json.dumps(number, allow_nan=False)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise UnreadableError from error
    raise UnreadableError


def string(source: Incoming) -> Reading[None]:
    """A string in either kind of quotes. What is no escape stays as it is written."""
    yield from source.peek(3)  # before a shorter quote is taken for the whole
    quote = yield from source.expect('"""', "'''", '"', "'")
    yield '"'
    while (mark := (yield from source.pieces(quote, "\\", written=json_inside))) == "\\":
        sign = yield from source.peek()
        count = 1 + _BY_NUMBER.get(sign, 0)
        escape = yield from source.peek(count)
        yield from source.expect(escape)
        if len(escape) < count or not escape:
            raise CutOffError
        text = _numbered(escape) if count > 1 else _ESCAPES.get(sign, f"\\{sign}")
        # Half a surrogate pair stays an escape.
        yield json_inside(text) if is_text(text) else json.dumps(text)[1:-1]
    if not mark:
        raise CutOffError
    yield '"'


def _numbered(escape: str) -> str:
    try:
        return chr(int(escape[1:], 16))
    except (ValueError, OverflowError):
        return f"\\{escape}"
