"""Bounds on texts and grammars, kept before llguidance sees them; `schema.py` has those on schemas.

Its compiler recurses along references and nesting, up to 4 KB of stack for a level, and some of its
steps take time that grows with a square.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import lcm
from typing import Any

from tokalign.errors import UsageError, require_text, shown

_MOST_LITERAL = 1 << 14
_MOST_CHOICES = 10_000
_MOST_NESTING = 64
MOST_BYTES = 1 << 19
_MOST_REGEX_BYTES = 1 << 15
_MOST_RULES = 2_000

_WHOLE = "the JSON schema"
_MOST_VALUES = {
    "enum": _MOST_CHOICES,
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems", "properties"), 1_000),
    "patternProperties": 64,
}
_MOST_REFERRED, _MOST_ITEMS, _MOST_STEPS = 3_000, 10_000, 20_000
"""Levels of nesting, summed over all that is referred to; `minItems`; and the least common multiple
of all `multipleOf`, in units of their last digits."""

_LARGEST_STEP = 1e300
"""A larger number may be no float; no grammar follows it."""

_LARK = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    | (?P<text>"(?:[^"\\\n]|\\.)*")
    | (?P<regex>/(?:[^/\\]|\\.)+/)
    | (?P<json>%json\b\s*)
    | (?P<colon>:)""",
    re.VERBOSE,
)


def at_most(whose: str, what: str, count: int, most: int = _MOST_RULES) -> None:
    """Raises: UsageError if there are more than `most`."""
    if count > most:
        raise UsageError(f"{whose} has {count:,} {what}; the maximum is {most:,}")


def check_text(whose: str, text: str, most: int = MOST_BYTES) -> None:
    """Raises: UsageError for what is no text, is too long, or cannot be held by UTF-8."""
    if isinstance(text, str):
        at_most(whose, "characters", len(text), most)  # sooner than looking at them
    require_text(whose, text)
    at_most(whose, "bytes", len(text.encode()), most)


def check_regex(pattern: str) -> None:
    """Raises: UsageError for a regular expression that is too long."""
    check_text("the regular expression", pattern, _MOST_REGEX_BYTES)


def check_choices(texts: Sequence[str]) -> None:
    """Raises: UsageError for too many texts, or for too long ones."""
    at_most("the choice", "texts", len(texts), _MOST_CHOICES)
    for number, text in enumerate(texts):
        check_text(f"text {number} of the choice", text, _MOST_LITERAL)
    at_most("the choice", "characters", sum(map(len, texts)), MOST_BYTES)


def check_lark(text: str, check_schema: Callable[[Any], object]) -> None:
    """Raises: UsageError for a grammar in Lark's format that goes beyond a bound; llguidance bounds
    its nesting. check_schema: is given every JSON schema in it."""
    check_text("the grammar", text)
    rules = at = 0
    while match := _LARK.search(text, at):
        at = match.end()
        match match.lastgroup:
            case "text":
                check_text("a text in the grammar", match[0], _MOST_LITERAL)
            case "regex":
                check_regex(match[0])
            case "json":
                schema, at = _schema_at(text, at)
                check_schema(schema)
            case "colon":
                rules += 1
    at_most("the grammar", "rules", rules)


def _schema_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON at an offset of a text, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise UsageError("the grammar has a %json that is not followed by a schema") from error


# -- schemas ---------------------------------------------------------------------------------------


def parsed(schema: Any) -> dict[str, Any] | bool:
    """A schema as plain JSON. Raises: UsageError."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            "the JSON schema holds what is no JSON; give objects, lists, texts, numbers, booleans "
            "and None alone"
        ) from error
    check_text(_WHOLE, text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not valid JSON ({error}); correct it") from error
    if not isinstance(document, dict | bool):
        raise UsageError(f"the JSON schema has to be an object, not {shown(schema)}")
    _levels(document)
    return document


def _levels(value: Any, depth: int = 0) -> int:
    """How deep the nesting of a value is. Raises: UsageError beyond the bound."""
    at_most(_WHOLE, "nested levels", depth, _MOST_NESTING)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + _levels(item, depth + 1) for item in inner), default=0)


def is_number(value: object) -> bool:
    """Whether a value is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _coefficient(step: float) -> int:
    """The digits of a step without the zeros around them: 25 for 0.025."""
    digits = f"{float(step):.15g}".partition("e")[0].replace(".", "").strip("0")
    return int(digits) if digits.isdecimal() else 1


class SchemaBounds:
    """What is counted while a schema is read, keyword by keyword."""

    def __init__(self) -> None:
        self._levels, self._patterns, self._steps = -1, 0, 1

    def count_levels(self, value: Any) -> None:
        """Count the levels of the whole, and those of everything that it refers to. Their sum does
        not depend on the order in which references are followed."""
        self._levels += 1 + _levels(value)
        at_most(_WHOLE, "levels below its references", self._levels, _MOST_REFERRED)

    def check(self, path: str, name: str, value: Any) -> None:
        """Raises: UsageError for a keyword that goes beyond a bound."""
        whose = f"{path} in the JSON schema"
        if name in _MOST_VALUES and isinstance(value, dict | list):
            at_most(whose, "values", len(value), _MOST_VALUES[name])
        match name:
            case "const" | "enum":
                for item in value if isinstance(value, list) else [value]:
                    check_text(whose, json.dumps(item, ensure_ascii=False), _MOST_LITERAL)
            case "pattern" if isinstance(value, str):
                check_text(whose, value, _MOST_LITERAL)
            case "minItems" if is_number(value) and value > _MOST_ITEMS:
                raise UsageError(f"{whose} is {shown(value)}; the maximum is {_MOST_ITEMS:,}")
            case "multipleOf" if is_number(value) and 0 < value < _LARGEST_STEP:
                self._steps = lcm(self._steps, _coefficient(value))
                multiple = f"the least common multiple of all multipleOf in {_WHOLE}"
                at_most(multiple, "units", self._steps, _MOST_STEPS)
            case "patternProperties" if isinstance(value, dict):
                self._patterns += len(value)
                at_most(_WHOLE, name, self._patterns, _MOST_VALUES[name])
