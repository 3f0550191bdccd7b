"""What a request says its answer has to match: a grammar of its own, or a call of a tool.

A tool is called in the text that the model's chat template writes, which mlx-lm's parser for it
reads: `_FORMATS` has those that can be written as a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tokalign.errors import shown
from tokalign.runtime.grammar import Grammar, json_lark
from tokalign.serve.admission import Refusal, require
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary

ANY_TOOL = ""
"""A `tool_choice` that leaves the tool to the model; other texts name one."""

_Kind = tuple[type | tuple[type, ...], str, Callable[[Any], Grammar]]

_JSON: _Kind = ((dict, str, bool), "a JSON schema", Grammar.json_schema)
_TEXT: _Kind = (str, "a grammar in GBNF or Lark's format", Grammar.text)
_REGEX: _Kind = (str, "a regular expression", Grammar.regex)
_CHOICE: _Kind = (list, "a list of texts", Grammar.choice)

_STRUCTURED: Mapping[str, _Kind] = {
    "json": _JSON,
    "regex": _REGEX,
    "grammar": _TEXT,
    "choice": _CHOICE,
}
"""Inside vLLM's newer `structured_outputs`."""

_FIELDS: Mapping[str, _Kind] = {
    **{f"guided_{name}": kind for name, kind in _STRUCTURED.items()},
    "grammar": _TEXT,
    "json_schema": _JSON,
}
"""Those of vLLM and of llama.cpp's server."""


def grammar_of(body: Mapping[str, Any]) -> Grammar | None:
    """The grammar that a body asks for. Raises: Refusal for a wrong one, and for two."""
    inner = body.get("structured_outputs") or {}
    require(isinstance(inner, dict), "structured_outputs has to be an object, not {}", inner)
    asked = [(f"structured_outputs.{n}", inner.get(n), kind) for n, kind in _STRUCTURED.items()]
    asked += [(name, body.get(name), kind) for name, kind in _FIELDS.items()]
    made = {one[0]: _made(*one) for one in asked if one[1] not in (None, "")}
    if (by_format := _response_format(body.get("response_format"))) is not None:
        made["response_format"] = by_format
    require(len(made) < 2, f"{' and '.join(made)} exclude each other; give one of them")
    return next(iter(made.values()), None)


def _made(name: str, value: Any, kind: _Kind) -> Grammar:
    types, what, make = kind
    are_texts = not isinstance(value, list) or all(isinstance(one, str) for one in value)
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
            raise Refusal(400, "response_format.json_schema has to be an object with a schema")
    raise Refusal(
        400, f"response_format has to be text, json_object or json_schema, not {shown(given)}"
    )


# -- tools -----------------------------------------------------------------------------------------


def tool_choice(body: Mapping[str, Any]) -> str | None:
    """The tool that has to be called, `ANY_TOOL`, or None where none has to. Raises: Refusal."""
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        if (function := function_of(choice)) is not None:
            return str(function["name"])
        form = '{"type": "function", "function": {"name": ...}}'
        raise Refusal(400, f"tool_choice has to name a function: {form}")
    words = ("auto", "none", "required", "any")
    require(
        choice in words, f"tool_choice has to be {', '.join(words)} or a function, not {{}}", choice
    )
    return ANY_TOOL if choice in ("required", "any") else None


def function_of(tool: object) -> dict[str, Any] | None:
    """The function of a tool or of a call; None if it has none with a name."""
    function = tool.get("function") if isinstance(tool, dict) else None
    named = isinstance(function, dict) and isinstance(function.get("name"), str)
    return function if named else None


class ToolFormat(NamedTuple):
    """How a chat template calls tools.

    parser: of mlx-lm, by the name of its module. begin, end: its marks.
    """

    parser: str
    begin: str
    end: str

    @classmethod
    def of(cls, tokenizer: Any) -> ToolFormat | None:
        """That of mlx-lm's tokenizer; None for a template that calls none."""
        parser = tokenizer.tool_parser
        if parser is None:
            return None
        name = parser.__module__.rpartition(".")[2]
        return cls(name, tokenizer.tool_call_start, tokenizer.tool_call_end or "")


def can_call(form: ToolFormat | None) -> bool:
    """Whether calls in this format can be written as a grammar."""
    return form is not None and form.parser in _FORMATS


def calls_grammar(
    form: ToolFormat | None,
    vocabulary: Vocabulary[TargetId],
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    several: bool = False,
) -> Grammar:
    """The grammar of an answer that calls a tool.

    choice: as in `ANY_TOOL`. several: whether it may be more than one call.
    Raises: Refusal for a tool that is not there, and a format that cannot be written as a grammar.
    """
    functions = [tool["function"] for tool in tools]
    if choice != ANY_TOOL:
        functions = [one for one in functions if one["name"] == choice]
    if not functions:
        named = f"names {choice!r}, which is not among tools" if choice else "needs tools"
        raise Refusal(400, f"tool_choice {named}")
    if form is None or not can_call(form):
        what = "no format for calls" if form is None else f"the format {form.parser}"
        raise Refusal(
            400,
            f"tool_choice cannot be honoured: the chat template of this model has {what}, which "
            "cannot be enforced; ask for the call in a message, and give auto",
            code="unsupported_parameter",
        )
    marks = {mark: f"<[{token}]>" for mark, token in vocabulary.special_ids.items()}
    call = " | ".join(f"({_FORMATS[form.parser](form, function, marks)})" for function in functions)
    more = r" (/\n?/ call)*" if several else ""
    return Grammar.lark(f"start: call{more}\ncall: {call}\n{_TAGGED_TEXT}\n")


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that a function takes."""
    return function.get("parameters") or {"type": "object", "properties": {}}


def _literal(text: str, marks: Mapping[str, str]) -> str:
    """A text in Lark's format; one special token is named by its id."""
    return marks.get(text) or json.dumps(text, ensure_ascii=False)


def _json_call(form: ToolFormat, function: Mapping[str, Any], marks: Mapping[str, str]) -> str:
    name = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
    parts = [_literal(form.begin, marks), _literal("\n" + name, marks)]
    parts += [json_lark(_schema(function), strict=False), _literal("}\n", marks)]
    return " ".join([*parts, *([_literal(form.end, marks)] if form.end else [])])


def _mistral_call(form: ToolFormat, function: Mapping[str, Any], marks: Mapping[str, str]) -> str:
    name, arguments = function["name"], json_lark(_schema(function), strict=False)
    begin = _literal(form.begin, marks)
    if "[ARGS]" in marks:
        return f"{begin} {_literal(name, marks)} {marks['[ARGS]']} {arguments}"
    opening = f'[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return f"{begin} {_literal(opening, marks)} {arguments} {_literal('}]', marks)}"


_TAG_END = "\n</parameter>\n"
_TAGGED_TEXT = f"tagged_text[suffix={json.dumps(_TAG_END)}]: /(.|\\n)*/"
"""A text that ends where its tag ends."""


def _tagged_call(form: ToolFormat, function: Mapping[str, Any], marks: Mapping[str, str]) -> str:
    """Qwen3-Coder's: every argument between tags of its own, texts as they are."""
    schema = _schema(function)
    parts = [_literal(form.begin, marks), _literal(f"\n<function={function['name']}>\n", marks)]
    for name, value in schema.get("properties", {}).items():
        text = isinstance(value, dict) and value.get("type") == "string"
        if text and "enum" in value:
            texts = [_literal(f"{one}{_TAG_END}", marks) for one in value["enum"]]
            inner = f"({' | '.join(texts)})"
        elif text:
            inner = "tagged_text"
        else:
            inner = f"{json_lark(value, strict=False)} {_literal(_TAG_END, marks)}"
        opening = f"<parameter={name}>\n"
        one = f"{_literal(opening, marks)} {inner}"
        parts.append(one if name in schema.get("required", ()) else f"({one})?")
    return " ".join([*parts, _literal("</function>\n", marks), _literal(form.end, marks)])


_FORMATS: Mapping[str, Callable[[ToolFormat, Mapping[str, Any], Mapping[str, str]], str]] = {
    "json_tools": _json_call,
    "glm47": _json_call,  # whose parser reads JSON as well
    "longcat": _json_call,
    "mistral": _mistral_call,
    "qwen3_coder": _tagged_call,
}
