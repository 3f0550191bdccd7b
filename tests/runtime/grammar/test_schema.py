"""What of a JSON schema cannot be enforced is named; with `strict` it is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLTokenizer

from tokalign.errors import UsageError
from tokalign.runtime.grammar import Grammar, json_lark, matcher
from tokalign.runtime.grammar.matcher import matcher_of

# What cannot be enforced in the field x, and the keyword that says so.
UNENFORCED: dict[str, tuple[dict[str, Any], str]] = {
    "look-ahead": ({"type": "string", "pattern": r"^(?=.*\d).{4,}$"}, "pattern"),
    "look-behind": ({"type": "string", "pattern": r"(?<=a)b"}, "pattern"),
    "word boundary": ({"type": "string", "pattern": r"\bfoo\b"}, "pattern"),
    "back reference": ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
    "no pattern": ({"type": "string", "pattern": "a("}, "pattern"),
    "32-bit float": ({"type": "number", "maximum": 3.4028234663852886e38}, "maximum"),
    "64-bit integer": ({"type": "integer", "minimum": -(2**63)}, "minimum"),
    "infinity": ({"type": "number", "exclusiveMaximum": math.inf}, "exclusiveMaximum"),
    "no number": ({"type": "number", "minimum": math.nan}, "minimum"),
    "a long number": ({"type": "integer", "maximum": 10**400}, "maximum"),
    "a long step": ({"type": "integer", "multipleOf": 10**400}, "multipleOf"),
    "an infinite constant": ({"const": math.inf}, "const"),
    "a constant that no float is": ({"const": [2**53 + 1]}, "const"),
    "the least constant": ({"enum": [{"a": -(2**63)}, "b"]}, "enum"),
    "a bound below all": ({"minimum": -(2**64), "maximum": 5}, "minimum"),
    "no JSON type": ({"type": "any"}, "type"),
    "one type of two": ({"type": ["integer", "date"]}, "type"),
    "a reference to the net": ({"$ref": "https://example.com/a.json"}, "$ref"),
    "a reference to nothing": ({"$ref": "#/$defs/nothing"}, "$ref"),
    "a reference to a place that no list has": ({"$ref": f"#/required/{'9' * 5000}"}, "$ref"),
    "a format": ({"type": "string", "format": "colour"}, "format"),
    "not": ({"type": "string", "not": {"const": "a"}}, "not"),
    "unique items": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "names of properties": ({"type": "object", "propertyNames": {"minLength": 2}}, "propertyNames"),
    "unevaluated": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "how many": ({"properties": {"a": {}, "b": {}}, "minProperties": 2}, "minProperties"),
    "a length in words": ({"type": "string", "minLength": "three"}, "minLength"),
    "required as a mark": ({"type": "string", "required": True}, "required"),
    "one of some that meet": ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf"),
}


def field(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


def matches(grammar: Grammar, text: str) -> bool:
    matcher = matcher_of(grammar.definition, LLTokenizer("byte"))
    return bool(matcher.consume_tokens([*text.encode()]) and matcher.is_accepting())


@pytest.mark.parametrize("kind", UNENFORCED)
def test_what_is_not_enforced_is_named(kind: str) -> None:
    schema, keyword = UNENFORCED[kind]
    path = f"properties.x.{keyword}"
    assert Grammar.json_schema(field(schema), strict=False).ignored == (path,)
    with pytest.raises(UsageError, match="cannot be enforced") as refused:
        Grammar.json_schema(field(schema))
    assert path in str(refused.value)
    assert json_lark(field(schema))


def test_as_many_optional_properties_as_are_taken_can_be_followed() -> None:
    grammar = Grammar.json_schema({"properties": {f"p{n}": {} for n in range(1000)}})
    assert matches(grammar, '{"p7": 1, "p999": 2, "more": 3}')


def test_bounds_that_no_float_is_are_held_by_the_next_one_inside() -> None:
    large = 2**53 + 1
    for name, held in (("minimum", large + 1), ("maximum", large - 1)):
        grammar = Grammar.json_schema(field({"type": "integer", name: large}))
        assert grammar == Grammar.json_schema(field({"type": "integer", name: held}))


@pytest.mark.parametrize("bound", [2**53 + 2, 10**16, 1e17, 2**62])
def test_an_integer_that_is_excluded_stays_excluded_where_floats_are_sparse(bound: float) -> None:
    for name, sign in (("exclusiveMaximum", 1), ("exclusiveMinimum", -1)):
        grammar = Grammar.json_schema({"type": "integer", name: sign * bound})
        for text, fits in ((f"{sign * int(bound)}", False), (f"{sign * 2**52}", True)):
            assert matches(grammar, text) is fits


def test_additional_items_follow_the_listed_ones_by_either_name_of_these() -> None:
    """llguidance forgets `prefixItems` beside `additionalItems`."""
    first, text = [{"type": "integer"}], {"type": "string"}
    for listed in ("items", "prefixItems"):
        for more, fits in ((False, False), (text, True)):
            schema = {"type": "array", listed: first, "additionalItems": more}
            grammar = Grammar.json_schema(schema)
            assert matches(grammar, "[1]")
            assert not matches(grammar, '["a"]')
            assert matches(grammar, '[1, "a"]') is fits
    both = {"prefixItems": first, "items": text, "additionalItems": False}
    assert matches(Grammar.json_schema(both), '[1, "a"]')


@pytest.mark.parametrize("names", ["properties", "patternProperties"])
def test_no_spelling_of_a_name_goes_past_its_schema(names: str) -> None:
    grammar = Grammar.json_schema({"type": "object", names: {"rok": {"type": "integer"}}})
    assert matches(grammar, '{"rok": 1, "inny": "x"}')
    for name in ("rok", r"\u0072ok", r"ro\u006B"):
        assert not matches(grammar, f'{{"{name}": "x"}}')
    closed = {"type": "object", names: {"a": {"type": "string"}}, "additionalProperties": False}
    assert matches(Grammar.json_schema(closed), r'{"a": "\u001b"}')


def test_a_path_may_have_braces() -> None:
    with pytest.raises(UsageError, match=r"a\{0,9\}"):
        Grammar.json_schema({"patternProperties": {"^a{0,9}$": {"const": "\ud800"}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"const": -(2**63)},
        {"enum": ["a", {"b": [1 - 2**63]}]},
        {"type": "integer", "minimum": -(2**64), "maximum": -(2**64)},
        {"type": "integer", "minimum": -1e300, "maximum": -1e300},
        {"allOf": [{"type": "integer"}, {"minimum": -(2**63)}, {"maximum": -(2**63)}]},
    ],
    ids=str,
)
def test_numbers_that_would_end_the_process_are_kept_from_llguidance(schema: Any) -> None:
    assert Grammar.json_schema(field(schema), strict=False).ignored
    with pytest.raises(UsageError, match="no grammar holds exactly"):
        Grammar.lark(f"start: %json {json.dumps(field(schema))}")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "format": "int32", "pattern": "("},
        {"type": ["boolean", "integer"], "format": "int64"},
        {"type": "boolean", "minLength": 3, "multipleOf": 10**400},
        {"type": "string", "minimum": 5},
    ],
    ids=str,
)
def test_what_asks_nothing_of_a_type_is_not_refused(schema: dict[str, Any]) -> None:
    """OpenAPI's formats of numbers stand in many tools; the standard's are of texts alone."""
    grammar = Grammar.json_schema(field(schema))
    assert grammar == Grammar.json_schema(field({"type": schema["type"]}))


def test_only_the_part_that_cannot_be_enforced_is_left_out() -> None:
    text = {"type": "string", "pattern": "(?=a)", "maxLength": 3}
    grammar = Grammar.json_schema(field(text), strict=False)
    kept = {"type": "string", "maxLength": 3}
    assert grammar.definition == Grammar.json_schema(field(kept)).definition
    both = {"anyOf": [{"type": "number"}, text, {"items": text}]}
    places = ("properties.x.anyOf[1].pattern", "properties.x.anyOf[2].items.pattern")
    assert Grammar.json_schema(field(both), strict=False).ignored == places


def union(*kinds: Any, required: bool = True) -> dict[str, Any]:
    """A union of classes as pydantic writes it, whose parts are told apart by their kinds."""
    needs = {"required": ["kind"]} if required else {}
    parts = {
        str(index): {"type": "object", "properties": {"kind": kind}, **needs}
        for index, kind in enumerate(kinds)
    }
    refers = [{"$ref": f"#/$defs/{name}"} for name in parts]
    return {"oneOf": refers, "discriminator": {"propertyName": "kind"}, "$defs": parts}


def test_a_union_of_classes_is_enforced_where_a_text_tells_them_apart() -> None:
    apart = union({"const": "cat"}, {"enum": ["dog", "wolf"]}, {"const": "cow", "type": "string"})
    assert Grammar.json_schema(apart).ignored == ()
    many = [f"cat {number}" for number in range(1000)]  # too many for unions without end
    alike = [
        union({"enum": many}, {"const": "dog"}),
        union({"const": "cat"}, {"enum": ["dog", "cat"]}),
        union({"const": "cat"}, {"const": 5}),
        union({"const": "cat"}, {"type": "string"}),
        union({"const": "cat"}, {"const": "dog"}, required=False),
        {**union({"const": "cat"}, {"const": "dog"}), "$defs": dict.fromkeys("01", True)},
    ]
    for schema in alike:
        assert Grammar.json_schema(schema, strict=False).ignored == ("oneOf",)


def test_notes_are_no_keywords() -> None:
    notes = {"title": "T", "default": 1, "examples": [{}], "x-order": 1, "uniqueItems": False}
    assert Grammar.json_schema(field({"type": "integer", **notes})).ignored == ()
    unknown = {"type": "string", "nullable": True}
    assert Grammar.json_schema(field(unknown)).ignored == ("properties.x.nullable",)


@pytest.mark.parametrize(
    "reference", ["#/$defs/a~1b", "#/$defs/a%2Fb", "https://example.com/s#/$defs/a~1b"]
)
def test_references_are_pointers(reference: str) -> None:
    schema = {
        "$id": "https://example.com/s",
        "$defs": {"a/b": {"type": "string", "pattern": r"\b"}},
        **field({"$ref": reference}),
    }
    if "%2F" not in reference:
        assert Grammar.json_schema(schema, strict=False).ignored == ("$defs.a~1b.pattern",)
    else:
        assert Grammar.json_schema(schema, strict=False).ignored == ("properties.x.$ref",)


def test_pointers_lead_into_the_nearest_schema_with_an_identifier() -> None:
    inner = {"$id": "inner", "$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}
    outer = {"$id": "https://example.com/s", "$defs": {"a": {"type": "integer"}}, **field(inner)}
    alone = {"$defs": inner["$defs"], **field({"$ref": "#/$defs/a"})}
    assert Grammar.json_schema(outer) == Grammar.json_schema(alone)


def test_neither_names_nor_empty_steps_are_taken_for_other_pointers() -> None:
    named = {**field({"$ref": "#items"}), "items": {"type": "string"}}
    assert Grammar.json_schema(named, strict=False).ignored == ("properties.x.$ref",)
    empty = {"$defs": {"": {"type": "string", "not": {}}}, **field({"$ref": "#/$defs/"})}
    assert Grammar.json_schema(empty, strict=False).ignored == ("$defs..not",)


def test_recursion_goes_through_references() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#", "description": "next"}}}
    assert Grammar.json_schema(node).ignored == ()
    node["properties"]["next"]["type"] = "object"  # type: ignore[index]
    assert Grammar.json_schema(node, strict=False).ignored in ((), ("properties.next.type",))


RECURRING: dict[str, dict[str, Any]] = {
    "type": {"$ref": "#", "$schema": "http://json-schema.org/draft-07/schema", "type": "object"},
    "allOf": {"allOf": [{"type": "object"}, {"$ref": "#"}]},
    "minProperties": {"oneOf": [{"$ref": "#"}, {"type": "null"}], "minProperties": 1},
    "patternProperties": {
        "properties": {"a": {"$ref": "#"}},
        "patternProperties": {"^a": {"type": "object"}},
    },
}


@pytest.mark.parametrize("left_out", RECURRING)
def test_what_cannot_be_merged_with_recursion_is_left_out(left_out: str) -> None:
    node = {"type": "object", "properties": {"x": RECURRING[left_out], "y": {"type": "null"}}}
    ignored = Grammar.json_schema(node, strict=False).ignored
    assert f"properties.x.{left_out}" in ignored
    assert not any(path.endswith("$schema") for path in ignored)
    with pytest.raises(UsageError, match=left_out):
        Grammar.json_schema(node)


MET: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "allOf": lambda base, count: {"allOf": [base, count]},
    "anyOf": lambda base, count: {"anyOf": [base], **count},
    "$ref": lambda base, count: {"$ref": "#/$defs/p", "$defs": {"p": base}, **count},
}


@pytest.mark.parametrize("met", MET)
def test_how_many_properties_is_not_counted_among_those_of_another_schema(met: str) -> None:
    """llguidance took none of two for two, and without `additionalProperties` other names alone."""
    for rest, least in (({"additionalProperties": False}, 2), ({}, 1)):
        base = {"type": "object", "properties": {"a": {}, "b": {}}, **rest}
        schema = MET[met](base, {"minProperties": least})
        grammar = Grammar.json_schema(schema, strict=False)
        assert [path.rpartition(".")[2] for path in grammar.ignored] == ["minProperties"]
        assert matches(grammar, '{"a": 1}')
        assert matches(grammar, '{"a": 1, "b": 2}')
        with pytest.raises(UsageError, match="minProperties cannot be counted"):
            Grammar.json_schema(schema)


def test_what_nothing_matches_is_refused() -> None:
    for schema in (
        False,
        {"enum": []},
        field({"type": "integer", "minimum": 5, "maximum": 3}),
        {"type": "object", "properties": {"x": 3}},
        {"items": 5},
    ):
        with pytest.raises(UsageError):
            Grammar.json_schema(schema, strict=False)


def test_the_same_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of an agent brings the same tools, which cost a second to compile."""
    schema = field({"type": "string", "pattern": "^(once|twice)$", "maxLength": 5})
    first = Grammar.json_schema(schema)
    monkeypatch.setattr(matcher, "on_deep_stack", lambda work: pytest.fail("compiled again"))
    assert Grammar.json_schema(schema) == first
