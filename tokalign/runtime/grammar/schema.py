"""JSON schemas: what of one can be enforced, written so that llguidance compiles it.

Clients send schemas with keywords that no grammar can follow: look-ahead, bounds that no integer
has, references to the net. Each place is read alone. What cannot be enforced there is left out and
named by its path, or, with `strict`, refused. A keyword whose value may be beyond llguidance is
tried in a schema of its own. What could end or stall a process is refused in the same walk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tokalign.errors import UsageError, shown
from tokalign.runtime.grammar.bounds import SchemaBounds, is_number, parsed
from tokalign.runtime.grammar.matcher import first_line, invalid
from tokalign.runtime.grammar.merging import merged_too_much
from tokalign.runtime.grammar.numbers import held, is_exact
from tokalign.runtime.grammar.objects import are_told_apart

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_STRINGS = ("minLength", "maxLength", "pattern", "format")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_KEPT = {"type", "enum", "const", "required", "pattern", "format", *_NUMBERS}
_MAPS = ("properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_REFERRING = ("$ref", "anyOf", "oneOf", "allOf")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_DRAFTS = {
    f"http{s}://json-schema.org/{name}"
    for s in ("", "s")
    for name in ("draft-04/schema", "draft-06/schema", "draft-07/schema")
} | {f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")}
_SAY_NOTHING = {
    *("$schema", "$id", "id", "$anchor", "$defs", "definitions", "$comment", "$vocabulary"),
    *("title", "description", "default", "examples", "example", "deprecated"),
    *("readOnly", "writeOnly", "contentMediaType", "contentEncoding", "x-guidance"),
    "discriminator",  # OpenAPI's, which says what tells the parts of a oneOf apart
}
_UNENFORCED = {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
}
_ASKS_NOTHING = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_MOST_OPTIONAL = 16
"""Optional properties of which at least or at most one may be asked for: a square of rules."""


def json_part(
    schema: Mapping[str, Any] | bool | str,
    *,
    strict: bool,
    root: Mapping[str, Any] | None = None,
    counts: bool = True,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A schema as llguidance reads it, JSON on one line, and the paths of what it leaves out.

    root: the schema that references lead into, if it is another one. counts: whether it keeps
    bounds on how many properties there are.
    Raises: UsageError for one beyond a bound, for what is no schema, for one that nothing matches,
    and, with `strict`, for a keyword that cannot be enforced.
    """
    read = parsed(schema)
    document = read if root is None else parsed(root)
    warnings: tuple[str, ...] = ()
    for alone in (0, 1, len(_REFERRING)):
        reader = _Reader(document, strict=strict, alone=alone, counts=counts)
        made = reader.document(read)
        if wrong := merged_too_much(made):
            continue
        wrong, warnings = invalid(json.dumps({"grammars": [{"json_schema": made}]}))
        if "circular references with sibling keys" not in wrong:
            break
    if counts and _MISCOUNTED.search(" ".join([wrong, *warnings])):
        return json_part(schema, strict=strict, root=root, counts=False)
    if wrong:
        raise UsageError(f"the JSON schema cannot be used: {first_line(wrong)}")
    for warning in warnings:
        if "oneOf" in warning:
            for path in reader.exclusive:
                reader.leave_out(path, "is followed as anyOf: more than one of its schemas may fit")
        else:
            reader.leave_out("a part of it", f"is not followed exactly: {first_line(warning)}")
    return made, tuple(dict.fromkeys(reader.ignored))


_MISCOUNTED = re.compile("min/maxProperties only|greater than number of properties")
"""What llguidance says where a bound meets the optional properties of other schemas, which it does
not count: of two that are optional it takes none for two."""


def check_schema(schema: Any) -> None:
    """Raises: UsageError for a JSON schema that goes beyond a bound, or is none, or has a number
    that llguidance, which gets it as it is, does not hold."""
    document = parsed(schema)
    reader = _Reader(document, strict=False)
    if wrong := merged_too_much(reader.document(document)):
        raise UsageError(f"the JSON schema cannot be used: {wrong}")
    for path in reader.inexact:
        raise UsageError(f"{path} in the JSON schema has a number that no grammar holds exactly")


_INDEX = re.compile("[0-9]{1,9}")


def referred(document: Any, reference: str) -> Any:
    """What a pointer into a document refers to; None if there is nothing there, or a name (`#name`)
    instead of a pointer."""
    pointer = unquote(reference)
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    value = document
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How the JSON is written, as most models write it."""
_NO_CODES = {"json_allowed_escapes": 'nrbtf\\"'}
"""No `\\u0061` in texts, where it would spell the name of a property past the property's schema."""


def _enforces(schema: Mapping[str, Any]) -> bool:
    """Whether llguidance compiles a schema, or says that nothing matches it."""
    made = {**schema, "x-guidance": {**_ON_ONE_LINE, "lenient": False}}
    try:
        wrong, _ = invalid(json.dumps({"grammars": [{"json_schema": made}]}, allow_nan=False))
    except ValueError:  # infinity, or no number
        return False
    return not wrong or "nsatisfiable" in wrong


def _why_not(name: str, value: Any) -> str:
    """Why a keyword cannot be enforced with this value; nothing if it may be."""
    items = value if isinstance(value, list) else [value]
    if name in _UNENFORCED and value is not _ASKS_NOTHING.get(name):
        return "is a keyword that no grammar follows"
    if name in _MAPS and not isinstance(value, dict):
        return "is no object"
    if (name in _LISTS or name == "enum") and not isinstance(value, list):
        return "is no list"
    if name == "required" and not (items is value and all(isinstance(i, str) for i in items)):
        return "is no list of names"
    if name in _COUNTS and not (is_number(value) and 0 <= value < 1 << 31 and int(value) == value):
        return "is no number of things"
    if name == "type" and not (items and all(kind in _TYPES for kind in items)):
        return f"names a type that JSON does not have: {shown(value)}"
    if name in ("enum", "const"):
        is_plain = all(isinstance(item, str | bool | None) for item in items)
        is_written = is_plain or (is_exact(value) and _enforces({name: value}))
        return "" if is_written else "has a value that cannot be written"
    return ""


class _Reader:
    """Reads one document. ignored: what was left out. exclusive: the paths of every oneOf
    whose parts may meet. inexact: those of numbers that are held otherwise. alone: leave out what
    stands beside the first so many of `_REFERRING` where they refer, which llguidance refuses in
    recursion. counts: as of `json_part`."""

    def __init__(
        self, document: dict[str, Any] | bool, *, strict: bool, alone: int = 0, counts: bool = True
    ) -> None:
        self._strict, self._alone, self._counts = strict, alone, counts
        self._base = document  # the nearest schema with an identifier, which pointers lead into
        self._names: dict[int, str] = {}
        self._pending: list[tuple[str, Any, dict[str, Any] | bool]] = []
        self._bounds = SchemaBounds()
        self._is_open = False  # whether names are free beside others that are not
        self.ignored: list[str] = []
        self.exclusive: list[str] = []
        self.inexact: list[str] = []

    def document(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """The whole: a schema, and below `$defs` what it refers to."""
        root = self._read("", schema)
        self._bounds.count_levels(schema)
        definitions: dict[str, Any] = {}
        while self._pending:
            path, value, self._base = self._pending.pop()
            self._bounds.count_levels(value)
            definitions[self._names[id(value)]] = self._read(path, value)
        if isinstance(root, bool):
            root = {} if root else {"enum": []}
        whole = {**root, "$defs": definitions} if definitions else root
        codes = _NO_CODES if self._is_open else {}
        return {**whole, "x-guidance": {**_ON_ONE_LINE, **codes, "lenient": True}}

    def leave_out(self, path: str, why: str) -> None:
        """Raises: UsageError with `strict`."""
        if self._strict:
            raise UsageError(
                f"the JSON schema asks for what cannot be enforced: {path} {why}; leave it out, "
                "or do not ask for strict"
            )
        self.ignored.append(path)

    def _read(self, path: str, schema: Any) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UsageError(
                f"{path or 'the whole'} in the JSON schema has to be a schema, not {shown(schema)}"
            )
        made: dict[str, Any] = {}
        base, identifier = self._base, schema.get("$id")
        if isinstance(identifier, str) and not identifier.startswith("#"):
            self._base = schema
        for name, value in schema.items():
            self._bounds.check(_join(path, name), name, value)
            self._read_keyword(made, _join(path, name), name, value)
        self._base = base
        if "prefixItems" in made and "additionalItems" in made:  # of two drafts of the standard
            made.setdefault("items", made.pop("additionalItems"))
        self._part_from_references(path, made)
        for names, kinds in ((_NUMBERS, ("integer", "number")), (_STRINGS, ("string",))):
            self._try_values(path, made, names, kinds)
        self._count_properties(path, made)
        if made.get("additionalProperties") is not False and any(name in made for name in _MAPS):
            self._is_open = True
        return made

    def _read_keyword(self, made: dict[str, Any], path: str, name: str, value: Any) -> None:
        number = held(name, value)
        if number != value or (name in ("enum", "const") and not is_exact(value)):
            self.inexact.append(path)
        if why := _why_not(name, value):
            self.leave_out(path, why)
        elif name in _NUMBERS and number is None:
            self.leave_out(path, f"is beyond what a grammar follows: {shown(value)}")
        elif name in _NUMBERS:
            made[name] = number
        elif name in _KEPT or (name == "$schema" and str(value).rstrip("#") in _DRAFTS):
            made[name] = value
        elif name in _COUNTS:
            made[name] = int(value)
        elif name == "$ref":
            self._read_reference(made, path, value)
        elif name in _MAPS:
            self._read_map(made, path, name, value)
        elif name in _LISTS or (name == "items" and isinstance(value, list)):
            if name == "oneOf" and not are_told_apart([*map(self._followed, value)]):
                self.exclusive.append(path)
            made[name] = [self._read(f"{path}[{n}]", item) for n, item in enumerate(value)]
        elif name in _SCHEMAS:
            made[name] = self._read(path, value)
        elif name not in _SAY_NOTHING | _UNENFORCED and not name.startswith("x-"):
            self.ignored.append(path)  # as the standard has it, a note

    def _part_from_references(self, path: str, made: dict[str, Any]) -> None:
        """Leave out what would be merged with a reference."""
        why = "stands beside a reference that recurs"
        beside = list[str]()
        for lead in _REFERRING[: self._alone]:
            parts = [made] if lead == "$ref" else made.get(lead, [])
            references = [part for part in parts if isinstance(part, dict) and "$ref" in part]
            if references:
                beside = [name for name in made if name not in (lead, "$schema")]
                if lead == "allOf" and len(parts) > 1:
                    made[lead] = references[:1]
                    self.leave_out(_join(path, lead), why)
                break
        else:
            if self._alone > 1 and "properties" in made and "patternProperties" in made:
                beside = ["patternProperties"]
        for name in beside:
            del made[name]
            self.leave_out(_join(path, name), why)

    def _followed(self, schema: Any) -> Any:
        """What a schema refers to, where llguidance does not look for what tells a union's parts
        apart; the schema itself if it does not refer."""
        is_reference = isinstance(schema, dict) and "$ref" in schema
        return self._target(schema["$ref"])[1] if is_reference else schema

    def _target(self, reference: Any) -> tuple[str, Any]:
        """A reference as a pointer into the document, and what it leads to; None for nothing."""
        base = self._base.get("$id") if isinstance(self._base, dict) else None
        local = reference if isinstance(reference, str) else ""
        if isinstance(base, str):
            local = local.removeprefix(base)
        return local, referred(self._base, local)

    def _read_reference(self, made: dict[str, Any], path: str, value: Any) -> None:
        local, target = self._target(value)
        if not isinstance(target, dict | bool):
            self.leave_out(path, f"refers to nothing in the schema: {shown(value)}")
            return
        if id(target) not in self._names:
            self._names[id(target)] = str(len(self._names))
            self._pending.append((local.lstrip("#/").replace("/", "."), target, self._base))
        made["$ref"] = f"#/$defs/{self._names[id(target)]}"

    def _read_map(self, made: dict[str, Any], path: str, name: str, value: Any) -> None:
        inner = {key: self._read(_join(path, key), item) for key, item in value.items()}
        if name == "patternProperties":
            for key in value:
                if not _enforces({"type": "object", name: {key: True}}):
                    self.leave_out(_join(path, key), "is a pattern that no grammar follows")
                    del inner[key]
            if not _enforces({"type": "object", name: dict.fromkeys(inner, True)}):
                self.leave_out(path, "has patterns that share names")
                return
        made[name] = inner

    def _try_values(
        self, path: str, made: dict[str, Any], names: tuple[str, ...], kinds: tuple[str, ...]
    ) -> None:
        """Leave out the values that llguidance cannot follow, alone or together, and those that ask
        nothing of the schema's types, as the `format` of an integer does."""
        values = {name: made[name] for name in names if name in made}
        types = made.get("type", list(kinds))
        types = [kind for kind in (types if isinstance(types, list) else [types]) if kind in kinds]

        def holds(some: Mapping[str, Any]) -> bool:
            return all(_enforces({"type": kind, **some}) for kind in types)

        if not types:
            for name in values:
                del made[name]
        if not values or holds(values):
            return
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if holds({name: value}) and holds({**kept, name: value}):
                kept[name] = value
            else:
                del made[name]
                self.leave_out(
                    _join(path, name), f"is beyond what a grammar follows: {shown(value)}"
                )

    def _count_properties(self, path: str, made: dict[str, Any]) -> None:
        """Leave out bounds on how many of the optional properties there are, except one; or all."""
        required = made.get("required", ())
        optional = sum(name not in required for name in made.get("properties", ()))
        least, most = made.get("minProperties", 0) - len(required), made.get("maxProperties")
        closed = made.get("additionalProperties") is False and "patternProperties" not in made
        is_one = least <= 1 and most in (None, 1 + len(required)) and optional <= _MOST_OPTIONAL
        asks_nothing = not optional or (least <= 0 and most is None)
        if self._counts and (asks_nothing or (closed and is_one)):
            return
        for name in ("minProperties", "maxProperties"):
            if name in made:
                del made[name]
                self.leave_out(_join(path, name), "cannot be counted beside optional properties")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)
