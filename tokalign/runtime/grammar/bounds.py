"""Bounds on grammars, kept before llguidance sees them.

Its compiler recurses along references and nesting, up to 4 KB of stack for a level, and some of its
steps take time that grows with a square. What is counted here does not depend on the order in which
it follows references: levels are summed over all that is referred to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import lcm
from typing import Any
from urllib.parse import unquote

from tokalign.errors import UsageError, shown

_MOST_BYTES = 1 << 19
_MOST_REGEX_BYTES = 1 << 15
_MOST_LITERAL = 1 << 14
_MOST_RULES = 2_000
_MOST_LEVELS = 8_000
_MOST_REFERRED = 3_000
_MOST_NESTING = 64
_MOST_VALUES = 100_000
_MOST_CHOICES = 10_000
_MOST_ALTERNATIVES = 1_000
_MOST_ITEMS = 10_000
_MOST_PATTERNS = 64
_MOST_STEPS = 20_000
_LISTS = {
    "enum": _MOST_CHOICES,
    "anyOf": _MOST_ALTERNATIVES,
    "oneOf": _MOST_ALTERNATIVES,
    "allOf": _MOST_ALTERNATIVES,
    "properties": _MOST_ALTERNATIVES,
}

_LARK = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    | (?P<text>"(?:[^"\\\n]|\\.)*")
    | (?P<regex>/(?:[^/\\]|\\.)+/)
    | (?P<json>%json\b)
    | (?P<colon>:)
    | (?P<open>[(\[])
    | (?P<close>[)\]])""",
    re.VERBOSE,
)


def at_most(whose: str, what: str, count: int, most: int = _MOST_RULES) -> None:
    """Raises: UsageError if there are more than `most`."""
    if count > most:
        raise UsageError(f"{whose} has {count:,} {what}; the maximum is {most:,}")


def check_text(whose: str, text: str, most: int = _MOST_BYTES) -> None:
    """Raises: UsageError for a text that is too long, or that UTF-8 cannot hold."""
    at_most(whose, "characters", len(text), most)  # sooner than encoding it
    try:
        at_most(whose, "bytes", len(text.encode()), most)
    except UnicodeEncodeError as error:
        raise UsageError(f"{whose} has a lone surrogate, which is no character") from error


def check_regex(pattern: str) -> None:
    """Raises: UsageError for a regular expression that is too long."""
    check_text("the regular expression", pattern, _MOST_REGEX_BYTES)


def check_choices(texts: Sequence[str]) -> None:
    """Raises: UsageError for too many texts, or for too long ones."""
    at_most("the choice", "texts", len(texts), _MOST_CHOICES)
    for number, text in enumerate(texts):
        check_text(f"text {number} of the choice", text, _MOST_LITERAL)
    at_most("the choice", "characters", sum(map(len, texts)), _MOST_BYTES)


# -- grammars --------------------------------------------------------------------------------------


def check_lark(text: str) -> None:
    """Raises: UsageError for a grammar in Lark's format that goes beyond a bound."""
    check_text("the grammar", text)
    rules = levels = depth = deepest = 0
    at, size = 0, len(text)
    while at < size:
        match = _LARK.search(text, at)
        if match is None:
            break
        at = match.end()
        match match.lastgroup:
            case "text":
                check_text("a text in the grammar", match[0], _MOST_LITERAL)
            case "regex":
                check_regex(match[0])
            case "json":
                at = _check_embedded(text, at)
            case "colon":
                rules, levels = rules + 1, levels + deepest + 1
                depth = deepest = 0
            case "open":
                depth += 1
                deepest = max(deepest, depth)
                at_most("the grammar", "nested groups", depth, _MOST_NESTING)
            case "close":
                depth = max(0, depth - 1)
    at_most("the grammar", "rules", rules)
    at_most("the grammar", "levels of rules and groups", levels + deepest, _MOST_LEVELS)


def _check_embedded(text: str, at: int) -> int:
    """Check the schema at an offset. Returns: where it ends."""
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        schema, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise UsageError("the grammar has a %json that is not followed by a schema") from error
    check_schema(schema)
    return end


# -- schemas ---------------------------------------------------------------------------------------


def check_schema(document: object) -> None:
    """Raises: UsageError for a JSON schema that goes beyond a bound."""
    values = list(_walk(document))
    heights: dict[int, int] = {}
    for _, value, _ in reversed(values):  # children come after their parents
        inner = value.values() if isinstance(value, Mapping) else value
        is_leaf = not isinstance(value, Mapping | list | tuple)
        heights[id(value)] = 0 if is_leaf else 1 + max((heights[id(v)] for v in inner), default=0)
    levels, steps, patterns = heights[id(document)], 1, 0
    references = set[str]()
    for path, value, _ in values:
        if isinstance(value, str):
            check_text(_at(path), value, _MOST_LITERAL)
        if not isinstance(value, Mapping):
            continue
        for name, most in _LISTS.items():
            if isinstance(value.get(name), Mapping | list | tuple):
                at_most(_at(path, name), "values", len(value[name]), most)
        if _is_above(value.get("minItems"), _MOST_ITEMS):
            number = shown(value["minItems"])
            raise UsageError(f"{_at(path, 'minItems')} is {number}; the maximum is {_MOST_ITEMS:,}")
        if _is_above(value.get("multipleOf"), 0):
            steps = lcm(steps, _coefficient(value["multipleOf"]))
            whose = "the least common multiple of all multipleOf in the JSON schema"
            at_most(whose, "units", steps, _MOST_STEPS)
        if isinstance(value.get("patternProperties"), Mapping):
            patterns += len(value["patternProperties"])
            at_most("the JSON schema", "patternProperties", patterns, _MOST_PATTERNS)
        if isinstance(value.get("$ref"), str):
            references.add(value["$ref"])
    for reference in references:
        levels += 1 + heights.get(id(referred(document, reference)), 0)
    at_most("the JSON schema", "levels below its references", levels, _MOST_REFERRED)


def _is_above(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > least


def referred(document: object, reference: str) -> Any:
    """What a reference inside a document refers to; None if there is nothing there."""
    if not reference.startswith("#"):
        return None
    value: Any = document
    for step in unquote(reference[1:]).strip("/").split("/") if reference.strip("#/") else []:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def _coefficient(step: float) -> int:
    """The digits of a step without the zeros around them: 25 for 0.025."""
    digits = f"{float(step):.15g}".partition("e")[0].replace(".", "").strip("0")
    return int(digits) if digits.isdecimal() else 1


def _at(path: str, name: str = "") -> str:
    """How a place in a schema is called."""
    return f"{'.'.join(filter(None, (path, name))) or 'a text'} in the JSON schema"


def _walk(document: object) -> Iterator[tuple[str, Any, int]]:
    """Every value of a document, with its path and its depth. Raises: UsageError if too large."""
    pending: list[tuple[str, Any, int]] = [("", document, 0)]
    count = characters = 0
    while pending:
        path, value, depth = one = pending.pop()
        count += 1
        inner: Iterable[tuple[str, Any]] = ()
        if isinstance(value, Mapping):
            inner = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
            characters += sum(len(str(key)) for key in value)
        elif isinstance(value, list | tuple):
            inner = ((f"{path}[{n}]", item) for n, item in enumerate(value))
        elif isinstance(value, str):
            characters += len(value)
        at_most("the JSON schema", "nested levels", depth, _MOST_NESTING)
        at_most("the JSON schema", "values", count, _MOST_VALUES)
        at_most("the JSON schema", "characters", characters, _MOST_BYTES)
        yield one
        pending += [(place, item, depth + 1) for place, item in inner]
