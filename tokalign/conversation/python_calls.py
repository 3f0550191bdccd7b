"""Calls as Python writes them: `[name(key="text", other=[1, True]), second()]`. Read next:
`tool_calls.py`."""

from __future__ import annotations

import json
import re
from ast import literal_eval

from tokalign.conversation.incoming import (
    SCALAR,
    CutOffError,
    Incoming,
    Member,
    Reading,
    UnreadableError,
    container,
    json_inside,
)
from tokalign.conversation.json_calls import (
    NAME,
    Calls,
    Ended,
    Named,
    Tools,
    close_calls,
    json_calls,
)
from tokalign.errors import is_text

_WORD = re.compile(r"[\w.+-]*")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
"""Python's names for what JSON has; templates and models mix both languages."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\n": ""}
_ESCAPES |= {mark: mark for mark in "\\'\""}
_BY_NUMBER = {"x": 2, "u": 4, "U": 8}
"""Digits of escapes that give a character's number."""


def python_calls(source: Incoming, end: str, _tools: Tools) -> Calls:
    """A list of calls, or one on each line. Names of arguments may be Python's own words, such as
    "from". LFM2 writes JSON if it is asked to."""
    opening = yield from source.take(_OPENING)
    if (yield from source.peek()) == "{":
        source.give_back(opening)
        yield from json_calls(source, end)
        return
    is_list = "[" in opening
    mark, last = ",", "]" if is_list else end[:1]
    while mark != last:
        yield from source.space()
        name = yield from source.take(NAME)
        yield from source.expect("(")
        if not name:
            raise UnreadableError
        yield from python_arguments(source, Named(name))
        yield Ended()
        mark = yield from source.mark(",", "]") if is_list else source.following()
    yield from close_calls(source, end)


_OPENING = re.compile(r"\s*\[?\s*")


def _value(source: Incoming, begin: str, depth: int) -> Reading[None]:
    """A value, and its key before it in a dictionary, which `begin` opens."""
    if begin == "{":
        yield from source.space()
        yield from python_string(source)
        yield (yield from source.mark(":")) + " "
    following = yield from source.following()
    if following in ("{", "[", "("):
        yield from container(source, depth, _value)
    elif following in ('"', "'"):
        yield from python_string(source)
    else:
        word = yield from source.take(_WORD)
        word = _CONSTANTS.get(word, word)
        if source.is_done:
            raise CutOffError
        yield word if SCALAR.fullmatch(word) else _number(word)


def python_arguments(source: Incoming, call: Named, value: Member = _value) -> Calls:
    """A call whose arguments come next, after the bracket that opens them. value: reads one."""
    before, mark = "{", ","
    while mark == ",":
        yield from source.space()
        key = yield from source.take(_WORD)
        if key:
            yield from source.mark("=")
            if before == "{":
                yield call
            yield f"{before}{json.dumps(key, ensure_ascii=False)}: "
            before = ", "
            yield from value(source, "(", 0)
        mark = yield from source.mark(",", ")") if key else source.expect(")")
    if before == "{":
        yield call
        yield before
    yield "}"


def _number(word: str) -> str:
    """A number in JSON that Python writes otherwise, such as `.5`; `07` is no number in either.
    Raises: UnreadableError."""
    try:
        number = int(word) if word.isdecimal() else literal_eval(word)
        json.dumps(number, allow_nan=False)
    except (ValueError, SyntaxError) as error:
        raise UnreadableError from error
    if not isinstance(number, int | float):
        raise UnreadableError
    return json.dumps(number)


def python_string(source: Incoming) -> Reading[None]:
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
