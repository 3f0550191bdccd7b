"""What could end, stall or fill a process is refused; what applications send is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from tokalign.errors import UsageError
from tokalign.runtime.grammar import Grammar, merging, parameters
from tokalign.runtime.grammar.parameters import Parameter

Schema = dict[str, Any]


def chain(count: int, link: Callable[[Schema], Schema]) -> Schema:
    names = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": names | {f"d{count}": {"type": "null"}}}


def nested(count: int, link: Callable[[Schema], Schema]) -> Schema:
    schema: Schema = {"type": "null"}
    for _ in range(count):
        schema = link(schema)
    return schema


LINKS: dict[str, Callable[[Schema], Schema]] = {
    "references": lambda one: dict(one),
    "items": lambda one: {"type": "array", "items": one},
    "properties": lambda one: {"type": "object", "properties": {"a": one}},
    "anyOf": lambda one: {"anyOf": [{"type": "null"}, one]},
    "allOf": lambda one: {"allOf": [one, {"type": ["object", "null"]}]},
    "additional": lambda one: {"type": "object", "additionalProperties": one},
}


@pytest.mark.parametrize("kind", LINKS)
def test_long_chains_and_deep_nesting_are_refused(kind: str) -> None:
    """They overflow the stack of the library that compiles them."""
    link = LINKS[kind]
    with pytest.raises(UsageError, match="levels below its references; the maximum is"):
        Grammar.json_schema(chain(3000, link), strict=False)
    assert Grammar.json_schema(chain(100, link), strict=False)
    if kind != "references":
        with pytest.raises(UsageError, match="nested levels; the maximum is 64"):
            Grammar.json_schema(nested(100, link), strict=False)
    with pytest.raises(UsageError, match=r"not valid JSON \(.*\); correct it"):
        Grammar.json_schema("[" * 100_000)


@pytest.mark.parametrize("value", [{"a", "b"}, object(), b"a"])
def test_a_schema_with_what_is_no_json_says_so(value: object) -> None:
    """It was said to have to be an object, and not a dict."""
    with pytest.raises(UsageError, match="holds what is no JSON"):
        Grammar.json_schema({"enum": value})


@pytest.mark.parametrize(
    ("schema", "bound"),
    [
        ({"type": "array", "minItems": 10**6}, "10,000"),
        ({"const": "ab" * 64_000}, "16,384"),
        ({"enum": ["ab" * 64_000, "c"]}, "16,384"),
        ({"enum": list(range(20_000))}, "10,000"),
        ({"anyOf": [{"const": n} for n in range(2000)]}, "1,000"),
        ({"oneOf": [{"const": n} for n in range(2000)]}, "1,000"),
        ({"properties": {f"p{n}": {} for n in range(3000)}}, "1,000"),
        ({"patternProperties": {f"^{n}$": {} for n in range(100)}}, "64"),
        ({"type": "integer", "multipleOf": 999_983}, "20,000"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "20,000"),
        ({"properties": {"a": {"default": list(range(200_000))}}}, "524,288"),
        (
            {"description": "x" * 10_000, "title": {str(n): "x" * 9999 for n in range(60)}},
            "524,288",
        ),
    ],
)
def test_large_schemas_are_refused(schema: Schema, bound: str) -> None:
    with pytest.raises(UsageError, match=f"the maximum is {bound}"):
        Grammar.json_schema(schema, strict=False)


def doubling(count: int, name: str, link: Callable[[Schema], Schema]) -> dict[str, Schema]:
    """Objects with two properties each, which lead to the next one."""
    names = {
        f"{name}{n}": {
            "properties": {key: link({"$ref": f"#/$defs/{name}{n + 1}"}) for key in "xy"}
        }
        for n in range(count)
    }
    return {**names, f"{name}{count}": {"type": "object"}}


def test_what_doubles_where_schemas_are_merged_is_left_out_or_refused() -> None:
    """24 levels in 2 KB took the memory of any machine, and so did 30 patterns for one text."""

    def nested(count: int) -> Schema:
        both = doubling(count, "a", lambda one: {"allOf": [one, {"required": ["x"]}]})
        return {"$ref": "#/$defs/a0", "$defs": both}

    def met(count: int) -> Schema:
        both = doubling(count, "a", dict) | doubling(count, "b", dict)
        return {"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": both}

    for make in (nested, met):
        assert Grammar.json_schema(make(5)).ignored == ()
        assert any(
            path.endswith("allOf") for path in Grammar.json_schema(make(24), strict=False).ignored
        )
        with pytest.raises(UsageError, match="more than 20,000 schemas are written out"):
            Grammar.lark(f"start: %json {json.dumps(make(24))}")
    named = {"properties": {key: {"type": "object"} for key in "xy"}}
    listed = {"prefixItems": [{"type": "array"}, {"type": "array"}]}
    for given, others in (
        (named, lambda one: {"additionalProperties": one}),
        (named, lambda one: {"patternProperties": {"^[xy]$": one}}),
        (listed, lambda one: {"items": one}),
    ):

        def unnamed(count: int, given: Schema = given, others: Any = others) -> Schema:
            names = {
                f"a{n}": {"allOf": [given, others({"$ref": f"#/$defs/a{n + 1}"})]}
                for n in range(count)
            }
            return {"$ref": "#/$defs/a0", "$defs": {**names, f"a{count}": {"type": "object"}}}

        assert Grammar.json_schema(unnamed(5)).ignored == ()
        with pytest.raises(UsageError, match="more than 20,000 schemas are written out"):
            Grammar.json_schema(unnamed(24), strict=False)
    patterns = [{"pattern": f"{n}.*x"} for n in range(30)]
    with pytest.raises(UsageError, match="has to match 30 patterns; the maximum is 12"):
        Grammar.json_schema({"type": "string", "allOf": patterns})
    assert Grammar.json_schema({"type": "string", "allOf": patterns[:4]})


def test_counting_what_is_merged_ends_where_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took two seconds for renovate's schema, whose options meet at thousands of places."""
    leaves = {str(n): {"type": "string"} for n in range(100)}
    merged = {"allOf": [{"$ref": "#/$defs/0"}, {"required": ["1"]}]}
    places = {f"p{n}": dict(merged) for n in range(1000)}
    looked = Mock(side_effect=merging._said_of)
    monkeypatch.setattr(merging, "_said_of", looked)
    told = merging.merged_too_much({"properties": places, "$defs": {"0": {"properties": leaves}}})
    assert "more than 20,000" in told
    assert looked.call_count < 100_000


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: Grammar.lark(_rules(3000)), "rules; the maximum is 2,000"),
        (lambda: Grammar.lark(_rules(3000).upper().replace("START", "start")), "2,000"),
        (lambda: Grammar.lark("start: " + "(" * 100 + '"a"' + ")" * 100), "nested"),
        (lambda: Grammar.lark("start: " + '("b" | ' * 100 + '"a"' + ")" * 100), "nested"),
        (lambda: Grammar.lark('start: "' + "a" * 20_000 + '"'), "16,384"),
        (lambda: Grammar.lark("start: /" + "a" * 40_000 + "/"), "32,768"),
        (lambda: Grammar.lark("start: %json " + json.dumps(chain(3000, LINKS["items"]))), "3,000"),
        (lambda: Grammar.lark("start: %json\n" + "[" * 100_000), "not followed by a schema"),
        (lambda: Grammar.text("#" * 600_000), "524,288"),
        (lambda: Grammar.text(_gbnf(3000)), "2,000"),
        (lambda: Grammar.text("root ::= " + "(" * 3000 + "[a]" + ")" * 3000), "2,000"),
        (lambda: Grammar.text("root ::= " + "[a] " * 60_000), "50,000"),
        (lambda: Grammar.regex("a" * 40_000), "32,768"),
        (lambda: Grammar.regex("(" * 5_000 + ")" * 5_000), "cannot be used"),
        (lambda: Grammar.choice([f"text {n}" for n in range(20_000)]), "10,000"),
        (lambda: Grammar.choice(["a" * 20_000]), "16,384"),
        (lambda: Grammar.choice(["\ud800"]), "surrogate"),
        (lambda: Grammar.text("\ud800"), "surrogate"),
    ],
)
def test_large_grammars_are_refused(make: Callable[[], Grammar], bound: str) -> None:
    with pytest.raises(UsageError, match=bound) as refused:
        make()
    assert len(str(refused.value)) < 400


def test_what_applications_send_is_used() -> None:
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["children"],
            }
        },
        "$ref": "#/$defs/node",
    }
    models = {
        f"Model{n}": {
            "type": "object",
            "properties": {
                "next": {"anyOf": [{"$ref": f"#/$defs/Model{(n + 1) % 200}"}, {"type": "null"}]},
                "name": {"type": "string", "maxLength": 100 + n},
            },
        }
        for n in range(200)
    }
    for schema in (
        tree,
        {"$defs": models, "$ref": "#/$defs/Model0"},
        {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(300)}},
        {"enum": [f"value {n}" for n in range(1000)]},
        {"type": "array", "items": {"type": "number", "multipleOf": 0.01}, "maxItems": 10**6},
    ):
        assert Grammar.json_schema(schema).ignored == ()
    assert Grammar.choice([f"text {n}\x7f" for n in range(1000)])
    assert Grammar.lark(_rules(500))
    assert Grammar.text(_gbnf(500))


def _rules(count: int) -> str:
    rules = "".join(f'a{n}: "x" a{n + 1} | "y"\n' for n in range(count))
    return f'start: a0\n{rules}a{count}: "z"\n'


def _gbnf(count: int) -> str:
    return (
        "root ::= a0\n"
        + "".join(f"a{n} ::= [a] a{n + 1}\n" for n in range(count))
        + f"a{count} ::= [b]"
    )


def test_a_value_is_compared_once_with_each_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a union recurs, as often as it has parts to the power of the value's depth."""
    fits, compared = parameters._fits, list[Any]()

    def counted(*given: Any) -> bool:
        compared.append(given)
        return fits(*given)

    monkeypatch.setattr(parameters, "_fits", counted)
    parts = [{"type": "array", "items": {"$ref": "#/$defs/x"}} for _ in range(3)]
    root = {"$defs": {"x": {"anyOf": [*parts, {"type": "integer"}]}}}
    parameter = Parameter.of({"$ref": "#/$defs/x"}, root)
    text = "[" * 7 + '"a"' + "]" * 7
    assert parameter.value(text) == json.loads(text)
    assert len(compared) < 300
