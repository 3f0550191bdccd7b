"""Reading calls of every format while they are written: names first, then arguments as JSON.

What a reader yields is in `json_calls.py`. mlx-lm's parsers, which need the whole text, read the
formats that have no reader here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from tokalign.conversation.incoming import (
    CutOffError,
    Incoming,
    Reading,
    UnreadableError,
    Waiting,
    collected,
)
from tokalign.conversation.json_calls import (
    NAME,
    Calls,
    Ended,
    Named,
    Tools,
    close_calls,
    deepseek_calls,
    json_arguments,
    json_calls,
    kimi_calls,
    mistral_calls,
)
from tokalign.conversation.python_calls import python_arguments, python_calls
from tokalign.conversation.values import container, json_inside, string, value
from tokalign.runtime.grammar.objects import properties_of, required_of
from tokalign.runtime.grammar.parameters import Parameter

_MORE_NAMES = frozenset(
    {
        *("$ref", "additionalProperties", "allOf", "anyOf", "dependentSchemas", "if", "oneOf"),
        *("minProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
    }
)
"""What says of names that are not among the properties, or may."""
_NO_MORE = {"additionalProperties": False}


def schema_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments: an object whatever it says, with no other names than
    those of properties that are listed. A function without parameters takes none."""
    given = function.get("parameters")
    schema = {**(given if isinstance(given, dict) else {"properties": {}}), "type": "object"}
    names = schema.get("properties")
    lists_all = isinstance(names, dict) and names.keys() >= {*required_of(schema)}
    return schema if not lists_all or _MORE_NAMES & schema.keys() else {**schema, **_NO_MORE}


def parameters_of(function: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of a function by their names."""
    schema = schema_of(function)
    (whole, *_) = Parameter.of(schema, schema).alternatives
    return {key: Parameter.of(value, schema) for key, value in properties_of(whole).items()}


# -- tags ------------------------------------------------------------------------------------------


class Tags(NamedTuple):
    """A format with a tag for every argument, whose value is text.

    name, key: before and after the names of a tool and of an argument. value: after an argument's
    value. tail: at the end of a call, if that is not the mark that ends all. pad: around a value.
    has_types: whether the first mark after an argument's name is followed by whether it is a text.
    """

    name: tuple[str, str]
    key: tuple[str, ...]
    value: str
    tail: str = ""
    pad: str = ""
    has_types: bool = False


_QWEN_CODER = Tags(
    ("<function=", ">"), ("<parameter=", ">"), "</parameter>", "</function>", pad="\n"
)
_GLM = Tags(("", ""), ("<arg_key>", "</arg_key>", "<arg_value>"), "</arg_value>")
TAGS: Mapping[str, Tags] = {
    "deepseek_v32": Tags(
        ('<｜DSML｜invoke name="', '">'),
        ('<｜DSML｜parameter name="', '" string="', '">'),
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        has_types=True,
    ),
    "glm47": _GLM,
    "laguna": _GLM,
    "longcat": Tags(
        ("", ""),
        ("<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>"),
        "</longcat_arg_value>",
    ),
    "minimax_m2": Tags(
        ('<invoke name="', '">'), ('<parameter name="', '">'), "</parameter>", "</invoke>"
    ),
    "muse_spark": Tags(
        ('<atem:invoke name="', '">'),
        ('<atem:parameter name="', '">'),
        "</atem:parameter>",
        "</atem:invoke>",
    ),
    "qwen3_coder": _QWEN_CODER,
    "seed_oss": _QWEN_CODER._replace(pad=""),
}
"""The tags of formats that have them, by mlx-lm's names of their parsers."""


def _tagged(tags: Tags, source: Incoming, end: str, tools: Tools) -> Calls:
    begins, named = tags.name
    if (yield from source.following()) == "{":  # some models write JSON between the marks
        yield from json_calls(source, end, tools)
        return
    mark = yield from source.mark(begins)
    while mark == begins:
        name = yield from source.take(NAME)
        if not name:
            raise CutOffError if source.is_done else UnreadableError
        yield from _close_name(source, named)
        functions = [tool["function"] for tool in tools if tool["function"]["name"] == name]
        known = parameters_of(functions[0]) if functions else {}
        yield from _tagged_arguments(tags, source, end, name, known)
        if not tags.tail:
            return
        mark = yield from source.mark(begins, end, or_end=True)


def _tagged_arguments(
    tags: Tags, source: Incoming, end: str, name: str, known: Mapping[str, Parameter]
) -> Calls:
    """Up to the tag that ends the call."""
    opening, missing = tags.key[0], dict.fromkeys(known)
    if (yield from source.following()) == "{":  # some models write all of them as JSON
        yield from json_arguments(source, Named(name))
        yield from source.mark(tags.tail or end)
        return
    before = ""
    while True:
        stray = "" if before else tags.value  # some models end a value that they have not begun
        mark = yield from source.mark(opening, *filter(None, [tags.tail, end, stray]))
        if mark == stray:
            continue
        if not before:
            yield Named(name)
        if mark != opening:
            if tags.tail and mark == end:  # the model left the tail out
                source.give_back(mark)
            yield "}" if before else "{}"
            yield Ended()
            return
        key, is_text = yield from _tagged_key(tags, source)
        missing.pop(key, None)
        parameter = known.get(key, Parameter.ANYTHING)
        if is_text and parameter.parted()[0].alternatives:
            parameter = _TEXT
        wraps = key in ("arguments", "input") and known and key not in known and not before
        if wraps and (yield from source.following()) == "{":  # as DeepSeek does at times
            yield from value(source)
            yield from source.mark(tags.value)
            yield from source.mark(tags.tail or end)
            yield Ended()
            return
        if tags.pad and (yield from source.peek()) == tags.pad:
            yield from source.expect(tags.pad)
        yield f"{before or '{'}{json.dumps(key, ensure_ascii=False)}: "
        before = ", "
        yield from _tagged_value(tags, source, parameter, end, missing)


def _close_name(source: Incoming, mark: str) -> Waiting[None]:
    """The mark after a name without quotes may be left out at the end of a line."""
    if mark != ">" or (yield from source.peek()) != "\n":
        yield from source.expect(mark)


def _tagged_key(tags: Tags, source: Incoming) -> Waiting[tuple[str, bool]]:
    """The name of an argument, up to its value, and whether a mark calls it a text. Some models
    leave out a mark."""
    _, *closing = tags.key
    yield from source.space()
    line = "\n" if closing == [">"] else closing[0]
    key, mark = yield from collected(source.pieces(*closing, line))
    if not mark:
        raise CutOffError
    if mark not in closing:
        source.give_back(mark)
        return key.strip(), False
    rest = closing[closing.index(mark) + 1 :]
    is_text = False
    if tags.has_types and rest:
        is_text = (yield from source.expect("true", "false")) == "true"
    for tag in rest:
        yield from source.mark(tag)
    return key.strip(), is_text


_TEXT = Parameter([{"type": "string"}], {})


def _tagged_value(
    tags: Tags, source: Incoming, parameter: Parameter, end: str, missing: Iterable[str]
) -> Reading[None]:
    """missing: arguments that may come next where a model leaves out the tag that ends a value."""
    if parameter.is_text:
        yield from _quoted(_text_of_value(tags, source, end, missing, json_inside))
    else:
        text, _ = yield from collected(_text_of_value(tags, source, end, missing, str))
        yield json.dumps(parameter.value(text), ensure_ascii=False)


def _text_of_value(
    tags: Tags, source: Incoming, end: str, missing: Iterable[str], written: Callable[[str], str]
) -> Reading[str]:
    """The text of a value, `written` in some form. Raises: CutOffError."""
    opening, closing, *_ = tags.key
    following = [name + closing for name in missing]
    ends = [tags.value, f"{tags.tail}\n{end}", *[opening] * bool(following)]
    marks = [text for mark in ends for text in dict.fromkeys((tags.pad + mark, mark))]
    while mark := (yield from source.pieces(*marks, written=written)):
        if mark.endswith(tags.value):
            return mark
        try:
            name = (yield from source.expect(*following)) if mark.endswith(opening) else ""
        except CutOffError:
            raise
        except UnreadableError:  # it only looks like the next argument
            yield written(mark)
        else:
            source.give_back(mark + name)
            return mark
    raise CutOffError


def _quoted(parser: Reading[str]) -> Reading[None]:
    """A text as a JSON string. parser: yields its inside, and returns what ends it, if anything
    does. Raises: CutOffError."""
    yield '"'
    if not (yield from parser):
        raise CutOffError
    yield '"'


# -- Gemma -----------------------------------------------------------------------------------------


def _gemma(quote: str, source: Incoming, end: str, _tools: Tools) -> Calls:
    """`call:name{key:5,other:<escape>text<escape>}` or `call:name(key=5)`, one or several."""
    following = "c"
    while following in ("c", ":"):
        yield from source.expect("call:", ":")
        name = (yield from source.take(NAME)).removeprefix("call:")
        bracket = yield from source.peek()
        if not name or bracket not in ("{", "("):
            raise CutOffError if source.is_done else UnreadableError
        if bracket == "(":
            yield from source.expect(bracket)
            yield from python_arguments(source, Named(name), partial(_gemma_value, quote))
        else:
            yield Named(name)
            yield from container(source, 0, partial(_gemma_value, quote))
        yield Ended()
        following = yield from source.following()
    yield from close_calls(source, end)


def _gemma_value(quote: str, source: Incoming, outer: str, depth: int) -> Reading[None]:
    """A value, after its key in an object. outer: the bracket that it is in."""
    if outer == "{":
        key = (yield from source.until(":")).strip().removeprefix(quote).removesuffix(quote)
        yield f"{json.dumps(key, ensure_ascii=False)}: "
    begin = yield from source.following()
    if begin in ("{", "["):
        yield from container(source, depth, partial(_gemma_value, quote))
    elif (yield from source.peek(len(quote))) == quote:
        yield from source.expect(quote)
        yield from _quoted(source.pieces(quote, written=json_inside))
    elif outer == "(" and begin in ('"', "'"):
        yield from string(source)
    else:
        word = (yield from source.take(_GEMMA_WORDS[outer == "("])).strip()
        if source.is_done or not word:
            raise CutOffError if source.is_done else UnreadableError
        yield json.dumps(Parameter.ANYTHING.value(word), ensure_ascii=False)


_GEMMA_WORDS = re.compile(r"[^,}\]]*"), re.compile(r"[^,)]*")
"""Values without quotes; the second kind in round brackets."""


# -- all formats -----------------------------------------------------------------------------------


def _whole(parser: str, source: Incoming, end: str, tools: Tools) -> Calls:
    """What mlx-lm's parser of this name finds in the text before the end mark."""
    text, _ = yield from collected(source.pieces(*filter(None, [end])))
    module = import_module(f"mlx_lm.tool_parsers.{parser}")
    try:
        parsed = module.parse_tool_call(text, list(tools))
        calls = [
            (
                Named(call["name"].strip(), str(call.get("id") or "")),
                json.dumps(call["arguments"], ensure_ascii=False, allow_nan=False),
            )
            for call in (parsed if isinstance(parsed, list) else [parsed])
        ]
    except Exception as error:  # parsers raise what they like about a text that is no call
        raise UnreadableError from error
    for call, arguments in calls:
        yield call
        yield arguments
        yield Ended()


READERS: Mapping[str, Callable[[Incoming, str, Tools], Calls]] = {
    "deepseek_v3": deepseek_calls,
    "deepseek_v31": deepseek_calls,
    "function_gemma": partial(_gemma, "<escape>"),
    "gemma4": partial(_gemma, '<|"|>'),
    "json_tools": json_calls,
    "kimi_k2": kimi_calls,
    "llama3": json_calls,
    "mistral": mistral_calls,
    "pythonic": python_calls,
    **{parser: partial(_tagged, tags) for parser, tags in TAGS.items()},
}


def read_calls(parser: str, source: Incoming, end: str, tools: Tools) -> Calls:
    """The calls of a format, named as mlx-lm's parser of it, up to their end mark. Raises:
    UnreadableError for what is no call, CutOffError for one that ends too early."""
    reader = READERS.get(parser) or partial(_whole, parser)
    yield from reader(source, end, tools)
