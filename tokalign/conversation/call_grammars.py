"""The grammar of an answer that calls tools, for every format that can be written as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tokalign.conversation.tool_calls import TAGS, Tags, parameters_of, schema_of
from tokalign.conversation.tools import ANY_TOOL, HARMONY, LLAMA, ToolFormat
from tokalign.conversation.values import json_inside
from tokalign.errors import UsageError, shown
from tokalign.runtime.grammar import Grammar, json_lark
from tokalign.runtime.grammar.bounds import MOST_BYTES, at_most
from tokalign.runtime.grammar.grammar import lark_literal
from tokalign.runtime.grammar.objects import required_of
from tokalign.runtime.grammar.parameters import Parameter
from tokalign.runtime.grammar.schema import json_part
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary


def calls_grammar(
    form: ToolFormat | None,
    vocabulary: Vocabulary[TargetId],
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    several: bool = False,
) -> Grammar:
    """The grammar of an answer that calls a tool, or several, in the format of the template, or as
    JSON where that has no grammar. choice: as in `ANY_TOOL`. Raises: UsageError for a tool that is
    not there, or a template that calls none."""
    functions = [tool["function"] for tool in tools]
    if choice != ANY_TOOL:
        functions = [function for function in functions if function["name"] == choice]
    if not functions:
        named = f"names {shown(choice)}, which is not among tools" if choice else "needs tools"
        raise UsageError(f"tool_choice {named}")
    if form is None:
        raise UsageError(
            "tool_choice cannot be honoured: the chat template of this model has no tools, so none "
            "can be enforced; ask for the call in a message, and give auto"
        )
    writer = _Writer(form, vocabulary)
    write = _LARK.get(form.parser, partial(_json_line, _OBJECT))
    calls, size, ignored = list[str](), 0, list[str]()
    for function in functions:  # each is bounded before more is written
        paths = dict.fromkeys(json_part(schema_of(function), strict=False)[1])
        for key, parameter in parameters_of(function).items() if form.parser in TAGS else ():
            paths |= dict.fromkeys(f"properties.{key}.{name}" for name in parameter.unfollowed)
        ignored += [f"tools.{function['name']}.{path}" for path in paths]
        calls.append(f"({write(writer, function)})")
        size += len(calls[-1])
        at_most("the grammar of the tools", "characters", size, MOST_BYTES)
    more = r" (/\n?/ call)*" if several and form.parser != HARMONY else ""
    lines = [f"start: call{more}", f"call: {' | '.join(calls)}"]
    lines += [f"{name}: {terminal}" for terminal, name in writer.terminals.items()]
    return replace(Grammar.lark("\n".join(lines) + "\n"), ignored=tuple(ignored))


class _Writer:
    """Writes the rules of a grammar. terminals: the names of those that the rules need."""

    def __init__(self, form: ToolFormat, vocabulary: Vocabulary[TargetId]) -> None:
        self.form, self.vocabulary = form, vocabulary
        self.terminals: dict[str, str] = {}

    def text(self, text: str) -> str:
        """A text as a part of a rule."""
        return lark_of_marks(text, self.vocabulary)

    def value(self, parameter: Parameter, tags: Tags, after: str) -> str:
        """A value of a parameter and what ends it, which may have a special token in it."""
        text, *rest = _cut_at_marks(tags.pad + tags.value + after, self.vocabulary)
        tag = "" if rest else text.strip()
        return f"{parameter.lark(text, self.terminals, tag=tag)} {self.text(''.join(rest))}"

    def call(self, *parts: str) -> str:
        """Parts of a rule between the marks of the format."""
        return " ".join(
            filter(None, [self.text(self.form.begin), *parts, self.text(self.form.end)])
        )


def lark_of_marks(text: str, vocabulary: Vocabulary[TargetId]) -> str:
    """A text as a part of a rule in Lark's format; special tokens in it are named by their ids."""
    ids = vocabulary.special_ids
    parts = filter(None, _cut_at_marks(text, vocabulary))
    return " ".join(f"<[{ids[part]}]>" if part in ids else lark_literal(part) for part in parts)


def _cut_at_marks(text: str, vocabulary: Vocabulary[TargetId]) -> list[str]:
    """A text, cut before and after each special token in it, the longest where several begin."""
    marks = sorted((mark for mark in vocabulary.special_ids if mark in text), key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]


# -- arguments in JSON -----------------------------------------------------------------------------


def _json_line(template: str, writer: _Writer, function: Mapping[str, Any]) -> str:
    """A call without marks around it."""
    name, parts = json_inside(function["name"]), re.split(r"(\{arguments\}|\{index\})", template)
    rules = {"{arguments}": json_lark(schema_of(function)), "{index}": "/[0-9]{1,3}/"}
    written = (rules.get(part) or writer.text(part.replace("{name}", name)) for part in parts)
    return " ".join(filter(None, written))


def _json_call(template: str, writer: _Writer, function: Mapping[str, Any]) -> str:
    return writer.call(_json_line(template, writer, function))


def _mistral_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    has_mark = "[ARGS]" in writer.vocabulary.special_ids
    template = "{name}[ARGS]{arguments}" if has_mark else f"[{_OBJECT}]"
    return _json_call(template, writer, function)


def _harmony_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    """A thought may come first. The end of the answer is that of the call."""
    name = f"commentary to=functions.{function['name']} <|constrain|>json<|message|>"
    return f"{after_thought(name, writer.vocabulary)} {json_lark(schema_of(function))}"


def after_thought(header: str, vocabulary: Vocabulary[TargetId]) -> str:
    """What comes before the text of a message of gpt-oss, in Lark's format. header: its own, after
    the mark of a channel. A message in `analysis` may come first."""
    thought = lark_of_marks("<|channel|>analysis<|message|>", vocabulary)
    after = lark_of_marks("<|end|><|start|>assistant", vocabulary)
    own = lark_of_marks(f"<|channel|>{header}", vocabulary)
    return rf"({thought} /(.|\n)*/ {after})? {own}"


# -- arguments by their names ----------------------------------------------------------------------


def _tagged_call(tags: Tags, writer: _Writer, function: Mapping[str, Any]) -> str:
    """Every argument between tags of its own. Where nothing ends a call but its mark, also without
    line breaks, or as JSON."""
    if tags.tail:
        return _between_tags(tags, "\n", writer, function)
    forms = [_between_tags(tags, after, writer, function) for after in ("\n", "")]
    forms.append(_json_call(f"\n{_OBJECT}\n", writer, function))
    return " | ".join(f"({form})" for form in forms)


def _between_tags(tags: Tags, after: str, writer: _Writer, function: Mapping[str, Any]) -> str:
    """after: what follows a tag."""
    before = "\n" if tags.tail else ""
    name = f"{before}{tags.name[0]}{function['name']}{tags.name[1]}{after}"
    parts = [writer.text(name)]
    required = required_of(schema_of(function))
    for key, parameter in parameters_of(function).items():
        forms = {after.join(tags.key[1:]): parameter}
        if tags.has_types:
            texts, others = parameter.parted()
            forms = {"true".join(tags.key[1:]): texts, "false".join(tags.key[1:]): others}
        written = [
            f"{writer.text(tags.key[0] + key + named + tags.pad)} {writer.value(kind, tags, after)}"
            for named, kind in forms.items()
            if kind.alternatives
        ]
        argument = f"({' | '.join(written)})"
        parts.append(argument if key in required else f"{argument}?")
    if tags.tail:
        parts.append(writer.text(tags.tail + after))
    return writer.call(*parts)


_CONSTANTS = {"True": "boolean", "False": "boolean", "None": "null"}


def _python_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    """What is required comes first. Values are in JSON, and may have Python's names."""
    required = required_of(schema_of(function))
    arguments, optional = list[str](), list[str]()
    for key, parameter in parameters_of(function).items():
        kinds = {schema.get("type") for schema in parameter.alternatives}
        names = [lark_literal(name) for name, kind in _CONSTANTS.items() if kind in kinds]
        argument = f"{lark_literal(key + '=')} ({' | '.join([parameter.json_lark(), *names])})"
        (arguments if key in required else optional).append(argument)
    more = [f'(", " {argument})?' for argument in optional]
    if arguments:
        given = " ".join([' ", " '.join(arguments), *more])
    else:
        given = f"({_some_of(optional, more)})?" if optional else ""
    return writer.call(writer.text(f"[{function['name']}("), given, writer.text(")]"))


def _some_of(first: Sequence[str], more: Sequence[str]) -> str:
    """One or more optional arguments in their order. more: each as it is after another.

    Half by half, so what is written grows little faster than the number of arguments."""
    if len(first) == 1:
        return first[0]
    half = len(first) // 2
    before, after = _some_of(first[:half], more[:half]), _some_of(first[half:], more[half:])
    return f"({before}) {' '.join(more[half:])} | {after}"


_OBJECT = '{"name": "{name}", "arguments": {arguments}}'
_TEMPLATES: Mapping[str, str] = {
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
    "<｜tool▁call▁end｜>",
    "deepseek_v31": "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
    "json_tools": f"\n{_OBJECT}\n",
    "kimi_k2": "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
    "<|tool_call_end|>",
}
"""Calls between the marks of formats that write arguments in JSON. The index is the model's."""

_LARK: Mapping[str, Callable[[_Writer, Mapping[str, Any]], str]] = {
    HARMONY: _harmony_call,
    LLAMA.parser: partial(_json_line, '{"name": "{name}", "parameters": {arguments}}'),
    "mistral": _mistral_call,
    "pythonic": _python_call,
    **{parser: partial(_json_call, template) for parser, template in _TEMPLATES.items()},
    **{parser: partial(_tagged_call, tags) for parser, tags in TAGS.items()},
}
