"""What a request says its answer has to match: a grammar of its own, or a call of a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tokalign.conversation.tools import ANY_TOOL, function_of
from tokalign.errors import UsageError, require, shown
from tokalign.runtime.grammar import Grammar
from tokalign.serve.admission import Refusal

_Kind = tuple[type | tuple[type, ...], str, Callable[[Any], Grammar]]

_JSON: _Kind = ((dict, str, bool), "a JSON schema", partial(Grammar.json_schema, strict=False))
_TEXT: _Kind = (str, "a grammar in GBNF or Lark's format", Grammar.text)
_REGEX: _Kind = (str, "a regular expression", Grammar.regex)
_CHOICE: _Kind = (list, "a list of texts", Grammar.choice)

_STRUCTURED = {"json": _JSON, "regex": _REGEX, "grammar": _TEXT, "choice": _CHOICE}

_FIELDS: Mapping[str, _Kind] = {
    **{f"structured_outputs.{name}": kind for name, kind in _STRUCTURED.items()},
    **{f"guided_{name}": kind for name, kind in _STRUCTURED.items()},
    "grammar": _TEXT,
    "json_schema": _JSON,
}
"""Those of vLLM, newer and older, and of llama.cpp's server."""


def grammar_of(body: Mapping[str, Any]) -> Grammar | None:
    """The grammar that a body asks for. Raises: UsageError for a wrong one, and for two."""
    inner = body.get("structured_outputs") or {}
    require(isinstance(inner, dict), "structured_outputs has to be an object, not {}", inner)
    given = {**body, **{f"structured_outputs.{name}": inner.get(name) for name in _STRUCTURED}}
    named = {name: given[name] for name in _FIELDS if given.get(name) not in (None, "")}
    made = {name: _made(name, value, _FIELDS[name]) for name, value in named.items()}
    if (by_format := _response_format(body.get("response_format"))) is not None:
        made["response_format"] = by_format
    require(len(made) < 2, f"{' and '.join(made)} exclude each other; give one of them")
    return next(iter(made.values()), None)


def _made(name: str, value: Any, kind: _Kind) -> Grammar:
    types, what, make = kind
    are_texts = not isinstance(value, list) or all(isinstance(text, str) for text in value)
    fits = isinstance(value, types) and are_texts
    require(fits, f"{name} has to be {what}, not {{}}", value)
    return make(value)


def _response_format(given: Any) -> Grammar | None:
    kind = given.get("type") if isinstance(given, dict) else given
    match given:
        case None | {"type": "text"}:
            return None
        case dict() if kind is None:
            return None
        case {"type": "json_object"}:
            return _made("response_format.schema", given.get("schema", {"type": "object"}), _JSON)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as inner}:
            return Grammar.json_schema(schema, strict=bool(inner.get("strict")))
        case {"type": "json_schema"}:
            raise UsageError("response_format.json_schema has to be an object with a schema")
    raise Refusal(
        400, f"response_format has to be text, json_object or json_schema, not {shown(given)}"
    )


def tool_choice(choice: Any) -> str | None:
    """The tool that has to be called, `ANY_TOOL`, or None where none has to. Raises: Refusal."""
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
