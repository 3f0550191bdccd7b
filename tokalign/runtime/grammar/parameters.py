"""A tool's parameter where its value is written as text between tags, as Qwen3-Coder's are.

The schema decides what a text means: `5` is a number where one may stand and a text where none may,
and a text is never in quotes. Grammar and reader take that from the same alternatives.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ge, gt, le, lt
from typing import Any, ClassVar

from tokalign.errors import UsageError
from tokalign.runtime.grammar.grammar import Grammar, json_lark, lark_literal
from tokalign.runtime.grammar.objects import properties_of, required_of
from tokalign.runtime.grammar.schema import referred

Schema = Mapping[str, Any]

_MOST_ALTERNATIVES, _DEEPEST_REFERENCE, _LONGEST_TEXT = 256, 32, 4096
_JSON_TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
}
_PYTHON_TYPES: Mapping[str, str] = {
    "bool": "boolean",
    "dict": "object",
    "float": "number",
    "int": "integer",
    "list": "array",
    "str": "string",
}
"""Names that tools give to types, too."""
_LIMITS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": le,
    "maximum": ge,
    "exclusiveMinimum": lt,
    "exclusiveMaximum": gt,
}
"""How a bound has to compare with a number."""
_HINTS: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "additionalProperties", "required"),
    "array": ("items", "prefixItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": (*_LIMITS, "multipleOf"),
}
"""Keywords that tell the type of a schema without one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a value may be: it fits one of these alternatives, which have no references themselves.
    root: the schema that references lead into."""

    alternatives: Sequence[Schema]
    root: Schema

    ANYTHING: ClassVar[Parameter]

    @classmethod
    def of(cls, schema: Any, root: Schema) -> Parameter:
        """The parameter of a schema, which may be anything."""
        few = list(islice(_alternatives(schema, root, 0), _MOST_ALTERNATIVES + 1))
        return cls(few if len(few) <= _MOST_ALTERNATIVES else [{}], root)

    @property
    def is_text(self) -> bool:
        """Whether a value is its text, whatever that is."""
        return all(_is_text(schema) and "type" in schema for schema in self.alternatives)

    @property
    def unfollowed(self) -> list[str]:
        """Keywords of texts that `lark` does not follow. Beside a list or an object, any text is
        taken."""
        others = {schema.get("type") for schema in self.alternatives if "enum" not in schema}
        is_any = not others.isdisjoint(("array", "object"))
        return [
            name
            for name in _HINTS["string"]
            for schema in filter(_is_text, self.alternatives)
            if name in schema and (is_any or _length(schema, name) is None)
        ]

    def value(self, text: str) -> Any:
        """The value that a text means."""
        for schema in self.alternatives:
            for value in schema.get("enum", ()):
                if text == _written(value):
                    return value
        try:
            value = _json(text)
            for schema in [] if isinstance(value, str) else self.alternatives:
                if _fits(value, schema, self.root, {}):
                    return int(value) if schema.get("type") == "integer" else value
        except (ValueError, RecursionError):  # it is no JSON, or nested too deeply
            return text if any(map(_is_text, self.alternatives)) else _python(text)
        return text if any(map(_is_text, self.alternatives)) else value

    def parted(self) -> tuple[Parameter, Parameter]:
        """The texts among the values, and the other values."""
        texts, others = list[Schema](), list[Schema]()
        for schema in self.alternatives:
            for part, is_text in ((texts, True), (others, False)):
                values = [v for v in schema.get("enum", ()) if isinstance(v, str) == is_text]
                part += [{"enum": values}] if values else []
            if "enum" not in schema:
                kinds = [schema["type"]] if "type" in schema else _JSON_TYPES
                for kind in kinds:
                    (texts if kind == "string" else others).append({**schema, "type": kind})
        return Parameter(texts, self.root), Parameter(others, self.root)

    # -- grammar -----------------------------------------------------------------------------------

    def lark(self, end: str, terminals: dict[str, str], *, tag: str) -> str:
        """A value and the text that ends it, as a part of a rule in Lark's format. tag: what no
        value has inside; "" where a special token follows, which no text has. terminals: get the
        names of those that the part needs."""
        literals = [_written(v) for schema in self.alternatives for v in schema.get("enum", ())]
        ending = lark_literal(end) if end else ""
        literals = [text for text in literals if not tag or tag not in text]
        others = [schema for schema in self.alternatives if "enum" not in schema]
        if not any(map(_is_text, others)):
            either = [lark_literal(text) for text in literals]
            either += [self._json_lark(schema) for schema in others]
            return f"({' | '.join(either)}) {ending}"
        # One terminal for all: a lexer cannot tell where a text ends and its tag begins.
        bodies = [_pattern(schema) for schema in others]
        if not self.is_text:  # the quotes of JSON would be a part of the text
            bodies = [f'(({" | ".join(bodies)}) & ~/"(?s:.*)"/)']
        body = f"({' | '.join([*bodies, *map(lark_literal, literals)])})"
        if tag:
            inside = re.escape(tag).replace("/", r"\/")
            body = f"({body} & ~/(?s:.*){inside}(?s:.*)/)"
        body = f"{body} {ending}".strip()
        return terminals.setdefault(body, f"VALUE_{len(terminals)}")

    def json_lark(self) -> str:
        """A value in JSON, as a part of a rule in Lark's format."""
        return f"({' | '.join(map(self._json_lark, self.alternatives))})"

    def _json_lark(self, schema: Schema) -> str:
        root = self.root if "$ref" in json.dumps(schema) else None
        lark = json_lark(schema, root=root)
        try:
            Grammar.lark(f"start: {lark}")
        except UsageError:
            kind = schema.get("type")
            return json_lark({} if kind is None else {"type": kind})
        return lark


Parameter.ANYTHING = Parameter([{}], {})


def _is_text(alternative: Schema) -> bool:
    """Whether any text is a value."""
    return "enum" not in alternative and alternative.get("type", "string") == "string"


def _written(value: Any) -> str:
    """A value as it is written between tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(text: str) -> Any:
    """The value of a text in JSON, or of one of Python's names for JSON's. Raises: ValueError."""
    value = json.loads(_PYTHON.get(text.strip(), text), strict=False)
    json.dumps(value, allow_nan=False)
    return value


def _python(text: str) -> Any:
    """The list or the object that a text in Python means, where one is wanted; models write it as
    well as JSON. The text itself if it is neither."""
    try:
        value = literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, dict | list) else text


_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Templates write Python's names into a history, and models repeat them."""


def _fits(value: Any, schema: Schema, root: Schema, known: dict[tuple[int, int], bool]) -> bool:
    """Whether a value has the types that an alternative asks for, inside too. known: the same of
    values inside and their schemas, by identity: where unions recur, there are many ways to each.
    """
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema.get("type")
    if kind is None:
        return True
    if not isinstance(value, _JSON_TYPES[kind]) or isinstance(value, bool) != (kind == "boolean"):
        return False
    if kind in ("integer", "number"):
        limits = ((schema.get(name), within) for name, within in _LIMITS.items())
        in_bounds = all(w(limit, value) for limit, w in limits if isinstance(limit, int | float))
        return in_bounds and (kind == "number" or value == int(value))
    if kind == "array":
        return all(_fits_any(item, schema.get("items"), root, known) for item in value)
    if kind == "object":
        inner = properties_of(schema)
        is_whole = all(name in value for name in required_of(schema))
        return is_whole and all(
            _fits_any(value[n], inner[n], root, known) for n in inner if n in value
        )
    return True


def _fits_any(value: Any, schema: Any, root: Schema, known: dict[tuple[int, int], bool]) -> bool:
    pair = id(value), id(schema)
    if pair not in known:
        alternatives = Parameter.of(schema, root).alternatives
        known[pair] = any(_fits(value, inner, root, known) for inner in alternatives)
    return known[pair]


# -- schemas ---------------------------------------------------------------------------------------


def _alternatives(schema: Any, root: Schema, depth: int) -> Iterator[Schema]:
    """What a schema leaves to choose from: no reference, no union, at most one type in each."""
    if not isinstance(schema, dict) or depth > _DEEPEST_REFERENCE:
        yield {}
        return
    rest = {name: value for name, value in schema.items() if name not in _ASIDE}
    union, kinds = schema.get("anyOf", schema.get("oneOf")), schema.get("type")
    if isinstance(reference := schema.get("$ref"), str):
        choices: list[Any] = [_merged([referred(root, reference), rest])]
    elif isinstance(schema.get("allOf"), list):
        choices = [_merged([*schema["allOf"], rest])]
    elif isinstance(union, list) and union:
        choices = [_merged([rest, branch]) for branch in union]
    elif isinstance(kinds, list) and kinds:
        choices = [{**rest, "type": kind} for kind in kinds]
    else:
        yield _plain(rest)
        return
    for choice in choices:
        yield from _alternatives(choice, root, depth + 1)


_ASIDE = ("$ref", "allOf", "anyOf", "oneOf", "title", "description", "default", "examples")


def _merged(schemas: Sequence[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for schema in schemas:
        merged |= schema if isinstance(schema, dict) else {}
    return merged


def _plain(schema: Schema) -> Schema:
    """A schema with a known type or none; a constant is an enumeration of one."""
    if "const" in schema:
        return {"enum": [schema["const"]]}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {"enum": schema["enum"]}
    kind = schema.get("type")
    if isinstance(kind, str) and (name := _PYTHON_TYPES.get(kind, kind)) in _JSON_TYPES:
        return {**schema, "type": name}
    for kind, hints in _HINTS.items():
        if any(hint in schema for hint in hints):
            return {**schema, "type": kind}
    return {}


_SCALARS = {
    "null": "null",
    "boolean": "(true|false)",
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
}


def _pattern(schema: Schema) -> str:
    """The texts of an alternative as a terminal in Lark's format, beside one that is a text."""
    kind = schema.get("type", "string")
    if kind in _SCALARS:
        return f"/{_SCALARS[kind]}/"
    least, most = _length(schema, "minLength") or 0, _length(schema, "maxLength")
    is_possible = most is None or least <= most
    bounds = f"{{{least},{'' if most is None else most}}}" if is_possible else "*"
    return f"/(?s:.{bounds})/"


def _length(schema: Schema, name: str) -> int | None:
    """A bound of a text's length; None for another keyword, and for none that can be enforced."""
    length = schema.get(name) if name in ("minLength", "maxLength") else None
    return length if type(length) is int and 0 <= length <= _LONGEST_TEXT else None
