"""Tools: which one has to be called, in what format (`tool_calls.py` reads all of them), and the
grammar of its calls, where the format can be written as one (`_LARK`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from secrets import choice as chosen
from string import ascii_letters, digits
from typing import Any, NamedTuple

from tokalign.conversation.tool_calls import (
    DSML,
    GLM,
    LONGCAT,
    MINIMAX,
    QWEN_CODER,
    READERS,
    Tags,
    parameters_of,
    schema_of,
)
from tokalign.errors import UsageError
from tokalign.runtime.grammar import Grammar, json_lark
from tokalign.runtime.grammar.grammar import lark_literal
from tokalign.runtime.grammar.parameters import required_of
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary

ANY_TOOL = ""
"""A `tool_choice` that leaves the tool to the model; other texts name one."""

HARMONY = "harmony"
"""The format of gpt-oss: a call is a message to the tool."""

_ID_LETTERS, _ID_LENGTH = ascii_letters + digits, 9
"""Mistral's templates take no other ids, and every template takes these."""


def function_of(tool: object) -> dict[str, Any] | None:
    """The function of a tool or of a call; None if it has none with a name."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return function if isinstance(name, str) and name.strip() else None


# -- ids -------------------------------------------------------------------------------------------


def call_id() -> str:
    """A new id for a call."""
    return "".join(chosen(_ID_LETTERS) for _ in range(_ID_LENGTH))


def with_call_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with ids of calls that every template takes, in the place of a client's own."""
    return [
        {
            name: [{**call, "id": _short(call["id"])} if "id" in call else call for call in value]
            if name == "tool_calls" and isinstance(value, list)
            else _short(value)
            if name == "tool_call_id"
            else value
            for name, value in message.items()
        }
        for message in messages
    ]


def _short(name: object) -> str:
    """An id as it is if it is short enough, and otherwise one made of it, always the same."""
    text = str(name)
    if re.fullmatch(rf"[A-Za-z0-9]{{{_ID_LENGTH}}}", text):
        return text
    return sha256(text.encode()).hexdigest()[:_ID_LENGTH]


# -- formats ---------------------------------------------------------------------------------------


class ToolFormat(NamedTuple):
    """How a chat template calls tools. parser: the name of mlx-lm's module for it, or `HARMONY`.
    begin, end: its marks."""

    parser: str
    begin: str
    end: str

    @classmethod
    def of(cls, tokenizer: Any) -> ToolFormat | None:
        """That of mlx-lm's tokenizer; None for a template that calls none."""
        parser = tokenizer.tool_parser
        if parser is not None:
            name = parser.__module__.rpartition(".")[2]
            return cls(name, tokenizer.tool_call_start, tokenizer.tool_call_end or "")
        marks = ("<|start|>", "<|channel|>", "<|message|>", "<|call|>")
        tokens, template = set(tokenizer.get_added_vocab()), str(tokenizer.chat_template)
        if set(marks) <= tokens:
            return cls(HARMONY, "", "")
        if "｜DSML｜" in template or "｜DSML｜" in tokens:
            calls = "tool_calls" if "｜DSML｜tool_calls>" in template else "function_calls"
            return cls("deepseek_v32", f"<｜DSML｜{calls}>", f"</｜DSML｜{calls}>")
        if DEEPSEEK.begin in template or DEEPSEEK.begin in tokens:
            return DEEPSEEK if "```json" in template else DEEPSEEK._replace(parser="deepseek_v31")
        return None

    @property
    def is_known(self) -> bool:
        """Whether all of its marks are known."""
        return self.parser == HARMONY or self.parser in READERS

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts in it that may be special tokens."""
        return (self.begin, self.end, *_INNER_MARKS.get(self.parser, ()))

    @property
    def has_short_ids(self) -> bool:
        """Whether the template refuses ids of calls that are not short; see `with_call_ids`."""
        return self.parser == "mistral"


DEEPSEEK = ToolFormat("deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
"""That of DeepSeek V3 and R1, which fence arguments; V3.1 does not."""


def _marks_of(tags: Tags) -> tuple[str, ...]:
    return (*tags.name, *tags.key, tags.value, tags.tail)


_DEEPSEEK_MARKS = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
_INNER_MARKS: Mapping[str, tuple[str, ...]] = {
    "deepseek_v3": _DEEPSEEK_MARKS,
    "deepseek_v31": _DEEPSEEK_MARKS,
    "deepseek_v32": _marks_of(DSML),
    "function_gemma": ("<escape>",),
    "gemma4": ('<|"|>',),
    "glm47": _marks_of(GLM),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "laguna": _marks_of(GLM),
    "longcat": _marks_of(LONGCAT),
    "mistral": ("[ARGS]", "[CALL_ID]"),
}


def can_call(form: ToolFormat | None) -> bool:
    """Whether calls in this format can be written as a grammar."""
    return form is not None and form.parser in _LARK


def calls_grammar(
    form: ToolFormat | None,
    vocabulary: Vocabulary[TargetId],
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    several: bool = False,
) -> Grammar:
    """The grammar of an answer that calls a tool, or several. choice: as in `ANY_TOOL`. Raises:
    UsageError for a tool that is not there, or a format without a grammar."""
    functions = [tool["function"] for tool in tools]
    if choice != ANY_TOOL:
        functions = [function for function in functions if function["name"] == choice]
    if not functions:
        named = f"names {choice!r}, which is not among tools" if choice else "needs tools"
        raise UsageError(f"tool_choice {named}")
    if form is None or not can_call(form):
        what = "no format for calls" if form is None else f"the format {form.parser}"
        raise UsageError(
            f"tool_choice cannot be honoured: the chat template of this model has {what}, which "
            "cannot be enforced; ask for the call in a message, and give auto"
        )
    writer = _Writer(form, vocabulary)
    call = " | ".join(f"({_LARK[form.parser](writer, function)})" for function in functions)
    more = r" (/\n?/ call)*" if several and form.parser != HARMONY else ""
    lines = [f"start: call{more}", f"call: {call}"]
    lines += [f"{name}: {terminal}" for terminal, name in writer.terminals.items()]
    return Grammar.lark("\n".join(lines) + "\n")


class _Writer:
    """Writes the rules of a grammar. terminals: the names of those that the rules need."""

    def __init__(self, form: ToolFormat, vocabulary: Vocabulary[TargetId]) -> None:
        self.form, self.vocabulary = form, vocabulary
        self.terminals: dict[str, str] = {}

    def text(self, text: str) -> str:
        """A text as a part of a rule."""
        return lark_of_marks(text, self.vocabulary)

    def call(self, *parts: str) -> str:
        """Parts of a rule between the marks of the format."""
        return " ".join(
            filter(None, [self.text(self.form.begin), *parts, self.text(self.form.end)])
        )


def lark_of_marks(text: str, vocabulary: Vocabulary[TargetId]) -> str:
    """A text as a part of a rule in Lark's format; special tokens in it are named by their ids."""
    ids = vocabulary.special_ids
    named = [re.escape(mark) for mark in sorted(ids, key=len, reverse=True) if mark in text]
    parts = re.split(f"({'|'.join(named)})", text) if named else [text]
    written = [f"<[{ids[part]}]>" if part in ids else lark_literal(part) for part in parts if part]
    return " ".join(written)


def _arguments(function: Mapping[str, Any]) -> str:
    return json_lark(schema_of(function), strict=False)


def _json_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    name = f'\n{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
    return writer.call(writer.text(name), _arguments(function), writer.text("}\n"))


def _mistral_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    if "[ARGS]" in writer.vocabulary.special_ids:
        return writer.call(writer.text(f"{function['name']}[ARGS]"), _arguments(function))
    opening = f'[{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": '
    return writer.call(writer.text(opening), _arguments(function), writer.text("}]"))


def _kimi_call(writer: _Writer, function: Mapping[str, Any]) -> str:
    name = f"<|tool_call_begin|>functions.{function['name']}:0<|tool_call_argument_begin|>"
    return writer.call(writer.text(name), _arguments(function), writer.text("<|tool_call_end|>"))


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
        opening = tags.key[0] + key + after.join(tags.key[1:]) + tags.pad
        end = tags.pad + tags.value
        if tags.value in writer.vocabulary.special_ids:
            value = f"{parameter.lark('', writer.terminals)} {writer.text(end)}"
        else:
            value = parameter.lark(end + after, writer.terminals)
        argument = f"{writer.text(opening)} {value}"
        parts.append(argument if key in required else f"({argument})?")
    if tags.tail:
        parts.append(writer.text(tags.tail + after))
    return writer.call(*parts)


def _glm_call(tags: Tags, writer: _Writer, function: Mapping[str, Any]) -> str:
    """With and without line breaks between the tags, or as JSON."""
    forms = [("", "\n", "\n"), ("", "", "")]
    either = [_tagged_call(tags, space, writer, function) for space in forms]
    return " | ".join(f"({form})" for form in [*either, _json_call(writer, function)])


_LARK: Mapping[str, Callable[[_Writer, Mapping[str, Any]], str]] = {
    HARMONY: _harmony_call,
    "deepseek_v3": partial(_deepseek_call, "function<｜tool▁sep｜>", "\n```json\n"),
    "deepseek_v31": partial(_deepseek_call, "", "<｜tool▁sep｜>"),
    "glm47": partial(_glm_call, GLM),
    "json_tools": _json_call,
    "kimi_k2": _kimi_call,
    "laguna": partial(_glm_call, GLM),
    "longcat": partial(_glm_call, LONGCAT),
    "minimax_m2": partial(_tagged_call, MINIMAX, ("\n", "\n", "\n")),
    "mistral": _mistral_call,
    "qwen3_coder": partial(_tagged_call, QWEN_CODER, ("\n", "\n", "\n")),
}
