"""How much a JSON schema grows where schemas meet: llguidance writes out what `allOf` joins, and
what stands beside a reference, property by property, however often the same schemas meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_WRITTEN, _MOST_PATTERNS = 20_000, 12
_INSIDE = ("items", "additionalItems", "additionalProperties")


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
        inside = defaultdict[tuple[str, str], list[Any]](list)
        for part in met:
            for kind in ("properties", "patternProperties"):
                for name, inner in part.get(kind, {}).items():
                    inside[kind, name].append(inner)
            for kind in ("anyOf", "oneOf", "prefixItems", *_INSIDE):
                for number, inner in enumerate(_listed(part.get(kind))):
                    inside[kind, str(number)].append(inner)
        return len(met) + sum(map(self.size, inside.values()))

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


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _refers(schemas: Sequence[Any]) -> bool:
    """Whether this is a reference alone, which is kept as one."""
    match schemas:
        case [{"allOf": [_] as only, **others}]:
            return not others and _refers(only)
        case [{"$ref": _, **others}]:
            return not others
    return False
