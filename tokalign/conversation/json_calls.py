"""Calls that are written as JSON, or in JSON: their readers, and what readers of calls yield.

A reader begins after the mark that opens calls and takes the one that ends them. It yields a
`Named` where a call begins, then the text of its arguments as it becomes known, then an `Ended`.
Read next: `tool_calls.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tokalign.conversation.incoming import CutOffError, Incoming, UnreadableError, collected
from tokalign.conversation.values import string, value

Tools = Sequence[Mapping[str, Any]]


class Named(NamedTuple):
    """A call begins. id: the one that the model gave it, if it has to be kept."""

    name: str
    id: str = ""


class Ended:
    """Ends the arguments of a call."""


Calls: TypeAlias = Generator[Named | str | Ended | None, None, None]
"""A reader of calls; it yields None where it waits for more text."""

NAME = re.compile(r"[^\s<>\"'(){}\[\],;=]*")


def bare_calls(source: Incoming, named: Collection[str], end: str) -> Calls:
    """JSON calls of tools with these names without the first mark of a format, as they are or
    fenced: "```json", a line with `{"name": "f", "arguments": {}}`, and "```". end: the last mark,
    which a model may write."""
    fence = ""
    if (yield from source.peek()) == "`":
        fence = yield from source.expect("```")
        if (yield from source.take(_LETTERS)) not in ("", "json", "tool_call"):
            raise UnreadableError
    yield from json_calls(source, fence, named=named)
    if end and not fence and (yield from source.peek(len(end))) == end:
        yield from source.expect(end)


_LETTERS = re.compile(r"\w*")
_MORE_KEYS = ("type", "id", "function")
"""What a call may have besides its name and arguments."""
_BETWEEN = re.compile(r"[\s;,]*")


def json_calls(
    source: Incoming, end: str, tools: Tools = (), *, named: Collection[str] | None = None
) -> Calls:
    """`{"name": ..., "arguments": {...}}`, or `{NAME: {...}}` with the name of a tool; one
    or several, or a list of them. Some models write `;` or `,` between two. named: the names that
    make a call of what may as well be another object; None for any name."""
    is_list = (yield from source.following()) == "["
    if is_list:
        yield from source.expect("[")
    following = "{"
    while following == "{":
        yield from _json_call(
            source, end, named, tools=[tool["function"]["name"] for tool in tools]
        )
        source.keep()  # what follows may be another object, which is text, and not this one's brace
        if is_list and (yield from source.mark(",", "]")) == "]":
            break
        between = yield from source.take(_BETWEEN)
        following = yield from source.peek()
        if following != "{":
            source.give_back(between)
    yield from close_calls(source, end)


def close_calls(source: Incoming, end: str) -> Calls:
    """The mark that ends calls; the end of the text will do."""
    yield from source.space()
    if end:
        yield from source.expect(end, or_end=True)


def _json_call(
    source: Incoming,
    end: str,
    named: Collection[str] | None = None,
    *,
    tools: Collection[str] = (),
    inner: bool = False,
) -> Calls:
    name, arguments, begun = "", "", False
    yield from source.mark("{")
    mark = ","
    while mark == ",":
        yield from source.space()
        key = json.loads((yield from collected(string(source)))[0])
        if named is not None and key not in ("name", "arguments", "parameters", *_MORE_KEYS):
            raise UnreadableError
        yield from source.mark(":")
        yield from source.space()
        if key in ("arguments", "parameters") and not begun:
            if name and (yield from source.peek()) == "{":
                yield from json_arguments(source, Named(name))
                begun = True
            else:
                arguments = _as_object((yield from collected(value(source)))[0])
        elif key == "function" and not (name or inner) and (yield from source.peek()) == "{":
            yield from _json_call(source, "", named, inner=True)  # as OpenAI's API has calls
            name, begun = key, True
        elif key in tools and name in ("", *tools) and (yield from source.peek()) == "{":
            yield from json_arguments(source, Named(key))
            name, begun = key, True
        else:
            text = (yield from collected(value(source)))[0]
            if key == "name" or (key in ("function", "tool_name") and not name):
                name = _loaded(text)
                if not isinstance(name, str) or not name.strip():
                    raise UnreadableError
                if named is not None and name not in named:
                    raise UnreadableError
        yield from source.space()
        # A brace that models forget at the very end.
        if begun and (source.is_done or (end and (yield from source.peek(len(end))) == end)):
            return
        mark = yield from source.expect(",", "}")
    if not begun:
        if not name or not (arguments or named is None):
            raise UnreadableError
        yield Named(name)
        yield arguments or "{}"
        yield Ended()


def _as_object(text: str) -> str:
    """Arguments that may be JSON inside a JSON string, null or empty."""
    value = _loaded(text) or {}
    if isinstance(value, str):
        value = _loaded(value)
    if not isinstance(value, dict):
        raise UnreadableError
    return json.dumps(value, ensure_ascii=False)


def _loaded(text: str) -> Any:
    """JSON's value. Raises: UnreadableError, also for what Python does not read, such as an integer
    of 5,000 digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError from error


def json_arguments(source: Incoming, call: Named) -> Calls:
    """A call whose arguments follow as a JSON object."""
    if (yield from source.following()) != "{":
        raise UnreadableError
    begun = False
    for text in value(source):
        if text is not None and not begun:
            yield call
            begun = True
        yield text
    yield Ended()


def mistral_calls(source: Incoming, end: str, _tools: Tools) -> Calls:
    """`[TOOL_CALLS]name[ARGS]{...}`, several with the first mark or without it, or JSON."""
    if (yield from source.following()) in ("[", "{"):
        yield from json_calls(source, end)
        return
    name, marks = (yield from source.take(NAME)), ["[ARGS]", "[CALL_ID]", "{"]
    if not name:
        raise UnreadableError
    while name:
        mark = yield from source.mark(*marks)
        if mark == "{":  # some models leave the mark out
            source.give_back(mark)
        elif mark == "[CALL_ID]":
            yield from source.until("[ARGS]")
        yield from json_arguments(source, Named(name))
        yield from source.space()
        name, marks = (yield from source.take(NAME)), ["[ARGS]", "[CALL_ID]"]


def kimi_calls(source: Incoming, end: str, _tools: Tools) -> Calls:
    """Names are `functions.NAME:INDEX`, which is an id that the template wants again."""
    return _marked_calls(source, end, "<|tool_call_begin|>", _kimi_call, "<|tool_call_end|>")


def _kimi_call(source: Incoming) -> Calls:
    name = yield from source.take(NAME)
    match = re.fullmatch(r"(?:functions\.)?(.+):\d+", name)
    if match is None:
        raise CutOffError if source.is_done else UnreadableError
    yield from source.mark("<|tool_call_argument_begin|>")
    yield from json_arguments(source, Named(match[1], name))


def deepseek_calls(source: Incoming, end: str, _tools: Tools) -> Calls:
    """`function<｜tool▁sep｜>name` and arguments in a fence, or `name<｜tool▁sep｜>{...}`."""
    begin, after = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    return _marked_calls(source, end, begin, _deepseek_call, after)


def _deepseek_call(source: Incoming) -> Calls:
    name = yield from source.take(NAME)
    yield from source.expect("<｜tool▁sep｜>")
    if is_fenced := (yield from source.peek()) != "{":
        name = yield from source.take(NAME)
        yield from source.mark("```json")
    if not name:
        raise UnreadableError
    yield from json_arguments(source, Named(name))
    yield from source.space()
    if is_fenced:
        yield from source.expect("```", or_end=True)


def _marked_calls(
    source: Incoming, end: str, begin: str, read: Callable[[Incoming], Calls], after: str
) -> Calls:
    """Calls that each stand between two marks; `read` reads what is between them."""
    while True:
        if (yield from source.mark(begin, end, or_end=True)) != begin:
            return
        yield from source.space()
        yield from read(source)
        mark = yield from source.mark(after, begin, *filter(None, [end]), or_end=True)
        if mark != after:  # which some models leave out
            source.give_back(mark)
