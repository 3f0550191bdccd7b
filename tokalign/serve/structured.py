"""What a request says its answer has to match: a grammar of its own, or a call of a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tokalign.conversation.tools import ANY_TOOL, function_of
from tokalign.errors import UsageError, require, shown
from tokalign.runtime.grammar import Grammar

Schema = dict[str, Any] | str | bool
"""A JSON schema, also as a text."""


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's field of this name."""

    json: Schema | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    json_object: bool | None = None
    structural_tag: Any = None


_json_grammar = partial(Grammar.json_schema, strict=False)

_MAKERS: Mapping[str, tuple[Callable[[Any], Grammar], *tuple[str, ...]]] = {
    "json": (_json_grammar, "guided_json", "json_schema"),
    "regex": (Grammar.regex, "guided_regex", "regex"),
    "grammar": (Grammar.text, "guided_grammar", "grammar", "ebnf"),
    "choice": (Grammar.choice, "guided_choice"),
}
"""What makes a grammar of each field of `StructuredOutputs`, and the body's fields like it."""


def grammar_of(body: Any) -> Grammar | None:
    """The grammar that a body's fields give. Raises: UsageError for a wrong one, and for two."""
    inner: StructuredOutputs = body.structured_outputs
    made = dict[str, Grammar]()
    for field, (make, *alike) in _MAKERS.items():
        given = {f"structured_outputs.{field}": getattr(inner, field)}
        given |= {name: getattr(body, name) for name in alike}
        made |= {name: make(value) for name, value in given.items() if value not in (None, "")}
    formats = dict(body.formats)
    if inner.json_object:
        formats["structured_outputs.json_object"] = {"type": "json_object"}
    for name, value in formats.items():
        if (by_format := _response_format(name, value)) is not None:
            made[name] = by_format
    require(len(made) < 2, f"{' and '.join(made)} exclude each other; give one of them")
    return next(iter(made.values()), None)


def _response_format(name: str, given: Any) -> Grammar | None:
    kind = given.get("type") if isinstance(given, dict) else given
    match given:
        case None | {"type": "text"}:
            return None
        case dict() if kind is None:
            return None
        case {"type": "json_object" | "json"}:  # "value" is TGI's word for the schema
            schema = given.get("value") if given.get("schema") is None else given["schema"]
            return _json_grammar({"type": "object"} if schema is None else schema)
        case {
            "type": "json_schema",
            "json_schema": {"schema": dict() | bool() as schema, **inner},
        } | {"type": "json_schema", "schema": dict() | bool() as schema, **inner}:
            return Grammar.json_schema(schema, strict=bool(inner.get("strict")))
        case {"type": "json_schema"}:
            raise UsageError(f"{name} is a json_schema, and has to have an object with a schema")
    raise UsageError(f"{name} has to be text, json_object or json_schema, not {shown(kind)}")


def allowed_tools(
    tools: Sequence[tuple[str, Any]], choice: Any
) -> tuple[Sequence[tuple[str, Any]], Any]:
    """The tools that a choice of OpenAI's kind `allowed_tools` leaves, and its mode as the choice;
    the names are in the form of chat completions or of responses. tools: with their paths. Raises:
    UsageError."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    match choice.get("allowed_tools", choice):
        case {"mode": mode, "tools": [*named]} if all(isinstance(tool, dict) for tool in named):
            names = {str((function_of(tool) or tool).get("name")) for tool in named}
            functions = [function_of(tool) for _, tool in tools]
            asked = zip(tools, functions, strict=True)
            return [tool for tool, own in asked if own is None or own["name"] in names], mode
    raise UsageError("tool_choice of the type allowed_tools has to have a mode and tools")


def tool_choice(choice: Any) -> str | None:
    """The tool that has to be called, `ANY_TOOL`, or None where none has to. Raises: UsageError."""
    if isinstance(choice, dict):
        if (function := function_of(choice)) is not None:
            return str(function["name"])
        form = '{"type": "function", "function": {"name": ...}}'
        raise UsageError(f"tool_choice has to name a function: {form}")
    words = ("auto", "none", "required", "any")
    require(
        choice in words, f"tool_choice has to be {', '.join(words)} or a function, not {{}}", choice
    )
    return ANY_TOOL if choice in ("required", "any") else None
