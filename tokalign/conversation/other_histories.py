"""Histories of Anthropic's messages and OpenAI's responses in the form of chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tokalign.conversation.rendering import Message
from tokalign.errors import UsageError, require, shown

_BILLING = "x-anthropic-billing-header:"
"""Begins a text that Claude Code puts first: it is no instruction, and another one every time, so
that no context could be kept."""


def of_messages(system: str | Sequence[Any], messages: Sequence[Message]) -> list[Message]:
    """Those of Anthropic. system: a text, or blocks of text. Raises: UsageError."""
    parts = [system] if isinstance(system, str) else system
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    are_texts = all(isinstance(text, str) for text in texts)
    require(are_texts, "system has to be a text or a list of text blocks")
    text = "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))
    history = [turn for message in messages for turn in _of_message(message)]
    require(bool(history), "messages is empty: there is nothing to answer")
    return [{"role": "system", "content": text}, *history] if text else history


def _of_message(message: Message) -> Iterator[Message]:
    """A message as one of the assistant, or as results of tools and what the user says besides."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        yield message
        return
    turn: Message = {"role": message.get("role"), "content": []}
    for part in content:
        match part:
            case {"type": "tool_result", "tool_use_id": str(name)}:
                yield _result(name, part.get("content", ""))
            case {"type": "tool_use", "id": str(), "name": str(name)}:
                call = _call(part["id"], name, json.dumps(part.get("input") or {}))
                turn.setdefault("tool_calls", []).append(call)
            case {"type": "thinking", "thinking": str(thought)}:
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
            case {"type": "redacted_thinking"}:
                pass
            case _:
                turn["content"].append(part)
    if turn["content"] or turn.keys() - {"role", "content"}:
        yield turn


def of_items(instructions: str | None, given: str | Sequence[Message]) -> Iterator[Message]:
    """Those of responses. What the assistant says and calls in a row is one message. given: a
    question, or items. Raises: UsageError that names the item."""
    if instructions:
        yield {"role": "system", "content": instructions}
    turn: Message = {}
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in enumerate(items):
        message = _of_item(index, item)
        if message["role"] != "assistant":
            if turn:
                yield turn
            turn = {}
            yield message
            continue
        turn = turn or {"role": message.pop("role"), "content": []}
        for name, value in message.items():
            if name == "content":
                turn["content"] += value if isinstance(value, list) else [value or ""]
            elif name != "role":
                turn[name] = turn[name] + value if name in turn else value
    if turn:
        yield turn


def _of_item(index: int, item: Message) -> Message:
    match item:
        case {"role": str(role)}:
            return {"role": role, "content": item.get("content")}
        case {"type": "function_call", "call_id": str(name), "name": str(), "arguments": str()}:
            call = _call(name, item["name"], item["arguments"])
            return {"role": "assistant", "tool_calls": [call]}
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            return _result(name, output)
        case {"type": "reasoning"}:
            content = item.get("content") or []
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            thought = "".join(text for text in texts if isinstance(text, str))
            return {"role": "assistant", "reasoning_content": thought}
    raise UsageError(
        f"input[{index}] has to be a message, a function_call, a function_call_output or a "
        f"reasoning item, with all of its fields, not {shown(item.get('type'))}"
    )


def _call(name: str, function: str, arguments: str) -> Message:
    return {"type": "function", "id": name, "function": {"name": function, "arguments": arguments}}


def _result(name: str, content: object) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": content}
