"""The grammar of an answer that calls tools, for every format that can be written as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tokalign.conversation.tool_calls import TAGS, Tags, parameters_of, schema_of
from tokalign.conversation.tools import ANY_TOOL, HARMONY, LLAMA, ToolFormat
from tokalign.errors import UsageError
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
        named = f"names {choice!r}, which is not among tools" if choice else "needs tools"
        raise UsageError(f"tool_choice {named}")
    if form is None:
        raise UsageError(
            "tool_choice cannot be honoured: the chat template of this model has no tools, so none "
            "can be enforced; ask for the call in a message, and give auto"
        )
    writer = _Writer(form, vocabulary)
    write = _LARK.get(form.parser, partial(_bare_call, "arguments"))
    calls, size, ignored = list[str](), 0, list[str]()
    for function in functions:  # each is bounded before more is written
        paths = json_part(schema_of(function), strict=False)[1]
        paths += _unfollowed(function) if form.parser in TAGS else ()
        ignored += [f"tools.{function['name']}.{path}" for path in dict.fromkeys(paths)]
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
        text, mark, rest = _at_mark(tags.pad + tags.value + after, self.vocabulary)
        tag = "" if mark else text.strip()
        return f"{parameter.lark(text, self.terminals, tag=tag)} {self.text(mark + rest)}"

    def call(self, *parts: str) -> str:
        """Parts of a rule between the marks of the format."""
        return " ".join(
            filter(None, [self.text(self.form.begin), *parts, self.text(self.form.end)])
        )


def lark_of_marks(text: str, vocabulary: Vocabulary[TargetId]) -> str:
    """A text as a part of a rule in Lark's format; special tokens in it are named by their ids."""
    before, mark, after = _at_mark(text, vocabulary)
    if not mark:
        return lark_literal(text) if text else ""
    named = f"<[{vocabulary.special_ids[mark]}]>"
    return " ".join(
        filter(None, [lark_of_marks(before, vocabulary), named, lark_of_marks(after, vocabulary)])
    )


def _at_mark(text: str, vocabulary: Vocabulary[TargetId]) -> tuple[str, str, str]:
    """A text before the longest special token that begins first in it, that token, and the rest."""
    marks = sorted(vocabulary.special_ids, key=len, reverse=True)
    found = min((mark for mark in marks if mark in text), key=text.index, default="")
    return text.partition(found) if found else (text, "", "")


def _arguments(function: Mapping[str, Any]) -> str:
    return json_lark(schema_of(function))


def _json_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    name = f'\n{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
    return writer.call(writer.text(name), _arguments(function), writer.text("}\n"))


def _bare_call(key: str, writer: _Writer, function: Mapping[str, Any]) -> str:
    """A line of JSON without marks. key: of the arguments."""
    name = json.dumps(function["name"], ensure_ascii=False)
    opening = writer.text(f'{{"name": {name}, "{key}": ')
    return f"{opening} {_arguments(function)} {writer.text('}')}"


def _mistral_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    if "[ARGS]" in writer.vocabulary.special_ids:
        return writer.call(writer.text(f"{function['name']}[ARGS]"), _arguments(function))
    opening = f'[{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
    return writer.call(writer.text(opening), _arguments(function), writer.text("}]"))


def _kimi_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    """The model numbers its calls, so that no two have the same id."""
    name = writer.text(f"<|tool_call_begin|>functions.{function['name']}:")
    mark, end = map(writer.text, ("<|tool_call_argument_begin|>", "<|tool_call_end|>"))
    return writer.call(name, "/[0-9]{1,3}/", mark, _arguments(function), end)


def _deepseek_call(before: str, after: str, writer: _Writer, function: Mapping[str, Any]) -> str:
    """before, after: around the name."""
    name = f"<｜tool▁call▁begin｜>{before}{function['name']}{after}"
    end = "\n```" if "```" in after else ""
    return writer.call(
        writer.text(name), _arguments(function), writer.text(f"{end}<｜tool▁call▁end｜>")
    )


def _harmony_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    """A thought may come first. The end of the answer is that of the call."""
    name = f"commentary to=functions.{function['name']} <|constrain|>json<|message|>"
    return f"{after_thought(name, writer.vocabulary)} {_arguments(function)}"


def after_thought(header: str, vocabulary: Vocabulary[TargetId]) -> str:
    """What comes before the text of a message of gpt-oss, in Lark's format. header: its own, after
    the mark of a channel. A message in `analysis` may come first."""
    thought = lark_of_marks("<|channel|>analysis<|message|>", vocabulary)
    after = lark_of_marks("<|end|><|start|>assistant", vocabulary)
    own = lark_of_marks(f"<|channel|>{header}", vocabulary)
    return rf"({thought} /(.|\n)*/ {after})? {own}"


def _tagged_call(
    tags: Tags, space: tuple[str, str, str], writer: _Writer, function: Mapping[str, Any]
) -> str:
    """Every argument between tags of its own. space: before a call, after its name, after a tag."""
    before, named, after = space
    name = f"{before}{tags.name[0]}{function['name']}{tags.name[1]}{named}"
    parts = [writer.text(name)]
    required = required_of(schema_of(function))
    for key, parameter in parameters_of([{"function": function}], function["name"]).items():
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
    for key, parameter in parameters_of([{"function": function}], function["name"]).items():
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


def _unfollowed(function: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths of what the texts between tags do not follow."""
    return tuple(
        f"properties.{key}.{name}"
        for key, parameter in parameters_of([{"function": function}], function["name"]).items()
        for name in sorted(parameter.unfollowed)
    )


def _glm_call(tags: Tags, writer: _Writer, function: Mapping[str, Any]) -> str:
    """With and without line breaks between the tags, or as JSON."""
    forms = [("", "\n", "\n"), ("", "", "")]
    either = [_tagged_call(tags, space, writer, function) for space in forms]
    return " | ".join(f"({form})" for form in [*either, _json_call(writer, function)])


_LARK: Mapping[str, Callable[[_Writer, Mapping[str, Any]], str]] = {
    HARMONY: _harmony_call,
    "deepseek_v3": partial(_deepseek_call, "function<｜tool▁sep｜>", "\n```json\n"),
    "deepseek_v31": partial(_deepseek_call, "", "<｜tool▁sep｜>"),
    "json_tools": _json_call,
    "kimi_k2": _kimi_call,
    LLAMA.parser: partial(_bare_call, "parameters"),
    "mistral": _mistral_call,
    "pythonic": _python_call,
    **{
        parser: partial(_tagged_call, tags, ("\n", "\n", "\n"))
        if tags.tail
        else partial(_glm_call, tags)
        for parser, tags in TAGS.items()
    },
}
