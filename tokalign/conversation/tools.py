"""Tools: which one has to be called, and in what format; `tool_calls.py` reads all of them, and
`call_grammars.py` has the grammars of those that can be written as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from secrets import choice as chosen
from string import ascii_letters, digits
from typing import Any, NamedTuple

from tokalign.conversation.tool_calls import READERS, TAGS
from tokalign.runtime.chat import reads

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
            calls = "tool_calls" if "tool_calls>" in template else "function_calls"
            return cls("deepseek_v32", f"<｜DSML｜{calls}>", f"</｜DSML｜{calls}>")
        if "<seed:tool_call>" in template:
            return cls("seed_oss", "<seed:tool_call>", "</seed:tool_call>")
        if DEEPSEEK.begin in template or DEEPSEEK.begin in tokens:
            return DEEPSEEK if "```json" in template else DEEPSEEK._replace(parser="deepseek_v31")
        if not reads(template, "tools"):
            return None
        for other in _OTHERS:
            if other.begin in template or other.begin in tokens:
                has_end = other.end in template or other.end in tokens
                return other if has_end else other._replace(end="")
        return LLAMA if '"parameters": ' in template else cls("json_tools", "", "")

    @property
    def is_known(self) -> bool:
        """Whether all of its marks are known."""
        return self.parser == HARMONY or self.parser in READERS

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts in it that may be special tokens."""
        return (self.begin, self.end, *_INNER_MARKS.get(self.parser, ()))

    @property
    def opening(self) -> str:
        """The mark of a single call, which some models write without `begin` before it."""
        return next(iter(_INNER_MARKS.get(self.parser, ())), "")


LLAMA = ToolFormat("llama3", "<|python_tag|>", "")
"""That of Llama 3: a line of JSON, which is a call without the mark too if the name is a tool's."""

DEEPSEEK = ToolFormat("deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
"""That of DeepSeek V3 and R1, which fence arguments; V3.1 does not."""

_OTHERS = (
    ToolFormat("json_tools", "<|tool_call|>", "<|/tool_call|>"),  # Granite 3
    ToolFormat("json_tools", "<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano 2
    ToolFormat("json_tools", "<tool_calls>", "</tool_calls>"),  # Hunyuan, Jamba
    ToolFormat("json_tools", "<|START_ACTION|>", "<|END_ACTION|>"),  # Command R7B, Command A
    ToolFormat("json_tools", "<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    ToolFormat("json_tools", "<tool_call>", "</tool_call>"),  # a template that writes no calls
    ToolFormat("pythonic", "<function_calls>", "</function_calls>"),  # Olmo 3
)
"""Formats of templates that mlx-lm has no parser for. Others with tools get calls in JSON."""


_DEEPSEEK_MARKS = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
_INNER_MARKS: Mapping[str, tuple[str, ...]] = {
    "deepseek_v3": _DEEPSEEK_MARKS,
    "deepseek_v31": _DEEPSEEK_MARKS,
    "function_gemma": ("", "<escape>"),
    "gemma4": ("call:", '<|"|>'),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "mistral": ("", "[ARGS]", "[CALL_ID]"),
    **{parser: (*tags.name, *tags.key, tags.value, tags.tail) for parser, tags in TAGS.items()},
}
"""Marks inside a format. The first is what a call begins with where a model may leave out the mark
before it."""
