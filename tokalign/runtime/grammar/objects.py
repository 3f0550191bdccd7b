"""What schemas of objects say of their properties, whatever else stands in the places of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of an object's properties."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def required_of(schema: Mapping[str, Any]) -> Sequence[str]:
    """The names of the properties that an object has to have."""
    required = schema.get("required")
    return (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )


_MOST = 50
"""Required names and texts that are looked at to tell schemas apart: a document may have thousands
of unions that refer to the same."""


def are_told_apart(schemas: Sequence[Any]) -> bool:
    """Whether these are schemas of objects that all have to have a property which is another text
    in each, such as the classes of a union. Then no value fits two of them."""
    if not all(isinstance(each, dict) and each.get("type") == "object" for each in schemas):
        return False
    for name in required_of(schemas[0])[:_MOST] if schemas else ():
        known = set[str]()
        for each in schemas:
            texts = _texts(each, name)
            if not texts or not known.isdisjoint(texts):
                break
            known |= texts
        else:
            return True
    return False


def _texts(object_schema: Mapping[str, Any], name: str) -> set[str]:
    """The texts that a property has to be one of; none if it may be anything else."""
    schema, required = properties_of(object_schema).get(name), object_schema.get("required")
    values = schema.get("enum", [schema.get("const")]) if isinstance(schema, dict) else None
    if not (isinstance(values, list) and isinstance(required, list) and name in required[:_MOST]):
        return set()
    is_known = len(values) <= _MOST and all(isinstance(value, str) for value in values)
    return set(values) if is_known else set()
