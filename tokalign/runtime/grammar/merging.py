"""How much a JSON schema grows where schemas meet: llguidance writes out what `allOf` joins, and
what stands beside a reference, property by property, however often the same schemas meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

_MOST_WRITTEN, _MOST_PATTERNS = 20_000, 12
_LISTED = ("anyOf", "oneOf", "prefixItems", "items", "additionalItems", "additionalProperties")
_OTHERS = {
    "properties": ("patternProperties", "additionalProperties"),
    "patternProperties": ("additionalProperties",),
    "prefixItems": ("items", "additionalItems"),
}
"""What a schema says of names and items that it does not list, which others may."""

_Place: TypeAlias = tuple[str, str]
"""A keyword, and a name or number below it."""


def merged_too_much(document: Mapping[str, Any]) -> str:
    """Why a schema would take too long or too much memory to compile; "" if it would not. document:
    as it is compiled, with all that it refers to below `$defs`."""
    written = _Written(document.get("$defs", {}))
    try:
        size = sum(written.size([schema]) for schema in (document, *written.definitions.values()))
    except RecursionError:
        return "schemas are merged through too many references"
    if size > _MOST_WRITTEN:
        return f"more than {_MOST_WRITTEN:,} schemas are written out where some are merged"
    if written.patterns > _MOST_PATTERNS:
        return f"a text has to match {written.patterns} patterns; the maximum is {_MOST_PATTERNS}"
    return ""


class _Written:
    """Counts what is written. A size is computed once for all the places where the same schemas
    meet, and is none where it recurs, which llguidance refuses. patterns: the most for one text."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self.definitions, self.patterns = definitions, 0
        self._sizes: dict[frozenset[int], int] = {}
        self._seen = 0  # schemas, each of which is written at least once

    def size(self, schemas: Sequence[Any]) -> int:
        if _refers(schemas):
            return 1
        key = frozenset(map(id, schemas))
        if key not in self._sizes:
            self._sizes[key] = 0
            self._sizes[key] = self._counted(schemas)
        return self._sizes[key]

    def _counted(self, schemas: Sequence[Any]) -> int:
        met = self._joined(schemas)
        self._seen += len(met)
        if self._seen > _MOST_WRITTEN:
            return self._seen
        self.patterns = max(self.patterns, sum("pattern" in part for part in met))
        places = [_places(part) for part in met]
        size = len(met)
        for place in dict.fromkeys(chain.from_iterable(places)):
            inner = [one for part in places for one in _said_of(place, part)]
            size += self.size([one for one in inner if isinstance(one, dict) and one])
            if max(self._seen, size) > _MOST_WRITTEN:
                return max(self._seen, size)
        return size

    def _joined(self, schemas: Iterable[Any]) -> Sequence[Mapping[str, Any]]:
        """Schemas and those that they are joined with, through references."""
        met, pending = dict[int, Mapping[str, Any]](), [*schemas]
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in met:
                met[id(schema)] = schema
                named = self.definitions.get(schema.get("$ref", "").rpartition("/")[2])
                pending += [named, *schema.get("allOf", ())]
        return [*met.values()]


def _places(part: Mapping[str, Any]) -> dict[_Place, Any]:
    """The schemas directly inside one."""
    places: dict[_Place, Any] = {}
    for kind in ("properties", "patternProperties"):
        places |= {(kind, name): inner for name, inner in part.get(kind, {}).items()}
    for kind in _LISTED:
        value = part.get(kind)
        if isinstance(value, list):
            kind = "prefixItems" if kind == "items" else kind
            places |= {(kind, str(number)): inner for number, inner in enumerate(value)}
        elif value is not None:
            places[kind, ""] = value
    return places


def _said_of(place: _Place, part: Mapping[_Place, Any]) -> Sequence[Any]:
    """What a schema with these places says of one; all that it may say, if it does not list it."""
    if place in part:
        return [part[place]]
    others = _OTHERS.get(place[0], ())
    return [inner for (kind, _), inner in part.items() if kind in others] if others else []


def _refers(schemas: Sequence[Any]) -> bool:
    """Whether this is a reference alone, which is kept as one."""
    match schemas:
        case [{"allOf": [_] as only, **others}]:
            return not others and _refers(only)
        case [{"$ref": _, **others}]:
            return not others
    return False
