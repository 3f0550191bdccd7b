"""Calls as Python writes them: `[name(key="text", other=[1, True]), second()]`. Read next:
`tool_calls.py`."""

from __future__ import annotations

import json
import re

from tokalign.conversation.incoming import Incoming, UnreadableError
from tokalign.conversation.json_calls import (
    NAME,
    Calls,
    Ended,
    Named,
    Tools,
    close_calls,
    json_calls,
)
from tokalign.conversation.values import Member, value

_KEY = re.compile(r"[\w.+-]*")


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


def python_arguments(source: Incoming, call: Named, read: Member = value) -> Calls:
    """A call whose arguments come next, after the bracket that opens them. read: reads one."""
    before, mark = "{", ","
    while mark == ",":
        yield from source.space()
        key = yield from source.take(_KEY)
        if key:
            yield from source.mark("=")
            if before == "{":
                yield call
            yield f"{before}{json.dumps(key, ensure_ascii=False)}: "
            before = ", "
            yield from read(source, "(", 0)
        mark = yield from source.mark(",", ")") if key else source.expect(")")
    if before == "{":
        yield call
        yield before
    yield "}"
