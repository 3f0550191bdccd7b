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


def are_told_apart(schemas: Sequence[Any]) -> bool:
    """Whether these are schemas of objects that all have to have a property which is another text
    in each, such as the classes of a union. Then no value fits two of them."""
    if not all(isinstance(each, dict) and each.get("type") == "object" for each in schemas):
        return False
    for name in required_of(schemas[0]) if schemas else ():
        texts = [_texts(each, name) for each in schemas]
        if all(texts) and len(set[str]().union(*texts)) == sum(map(len, texts)):
            return True
    return False


def _texts(object_schema: Mapping[str, Any], name: str) -> set[str]:
    """The texts that a property has to be one of; none if it may be anything else."""
    schema = properties_of(object_schema).get(name)
    values = schema.get("enum", [schema.get("const")]) if isinstance(schema, dict) else [None]
    texts = [value for value in values if isinstance(value, str)] if type(values) is list else []
    is_known = texts == values and name in required_of(object_schema)
    return set(texts) if is_known else set()
