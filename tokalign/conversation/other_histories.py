"""Histories of Anthropic's messages and OpenAI's responses in the form of chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tokalign.conversation.history import named
from tokalign.conversation.rendering import Message
from tokalign.errors import UsageError, require, shown

_BILLING = "x-anthropic-billing-header:"
"""Begins a text that Claude Code puts first: it is no instruction, and another one every time, so
that no context could be kept."""

MORE_TOOLS = ("additional_tools", "tool_search_output")
"""Items that have further tools."""

_SILENT = ("additional_tools", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response")
"""Items that say nothing to a model."""

_STORED = ("item_reference", "message")
"""Items that may only refer to what OpenAI has."""

_RESULTS = ("output", "results", "outputs", "error")
"""Where a call that OpenAI has run has what it returned."""

_NO_ARGUMENTS = (*_RESULTS, "type", "id", "call_id", "name", "status", "caller", "server_label")
"""Fields of such a call that are no arguments."""

_FAILED = "[This call failed.]"

_PARTS = (
    *("text", "input_text", "output_text"),
    *("input_image", "input_file", "computer_screenshot"),
)


Named: TypeAlias = tuple[str, Message]
"""A message with the path of what it was made of."""


def of_messages(system: str | Sequence[Any], messages: Sequence[Message]) -> list[Named]:
    """Those of Anthropic. system: a text, or blocks of text. Raises: UsageError."""
    parts = [system] if isinstance(system, str) else system
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    are_texts = all(isinstance(text, str) for text in texts)
    require(are_texts, "system has to be a text or a list of text blocks")
    text = "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))
    history = [
        turn for named_one in named("messages", messages) for turn in _of_message(*named_one)
    ]
    require(bool(history), "messages is empty: there is nothing to answer")
    return [("system", {"role": "system", "content": text}), *history] if text else history


def _of_message(path: str, message: Message) -> Iterator[Named]:
    """A message as one of the assistant, or as results of tools and what the user says besides,
    where nothing stands in the places of what is no part of it."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        yield path, message
        return
    turn: Message = {"role": message.get("role"), "content": [""] * len(content)}
    thoughts, has_begun = list[str](), False
    for index, part in enumerate(content):
        match part:
            case {"type": "tool_result", "tool_use_id": str(name)}:
                failed = part.get("is_error") is True
                result = _result(name, part.get("content", ""), failed=failed)
                yield f"{path}.content[{index}]", result
            case {"type": "tool_use", "id": str(), "name": str(name)}:
                call = _call(part["id"], name, json.dumps(part.get("input") or {}))
                turn.setdefault("tool_calls", []).append(call)
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                pass
            case _:
                turn["content"][index] = part
                is_apart = has_begun and not turn["content"][index - 1]
                has_begun = has_begun or bool(part)
                if is_apart and turn["role"] == "assistant":
                    turn["content"][index - 1] = "\n\n"
    if any(thoughts):
        turn["reasoning_content"] = "\n\n".join(filter(None, thoughts))
    if any(turn["content"]) or turn.keys() - {"role", "content"}:
        yield path, turn


def of_items(instructions: str | None, given: str | Sequence[Message]) -> Iterator[Named]:
    """Those of responses. What the assistant says and calls in a row is one message. given: a
    question, or items. Raises: UsageError that names the item."""
    if instructions:
        yield "instructions", {"role": "system", "content": instructions}
    turn, begin = list[Message](), ""  # what the assistant says, and the path of the first item
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    require(bool(items), "input is empty: there is nothing to answer")
    for path, item in named("input", items):
        for message in _of_item(path, item):
            if message["role"] == "assistant":
                begin = begin if turn else path
                turn.append(message)
                continue
            if turn:
                yield begin, _turn(turn)
            turn = []
            yield path, message
    if turn:
        yield begin, _turn(turn)


def _turn(messages: Sequence[Message]) -> Message:
    """What the assistant says in a row as one message."""
    content, has_begun = list[Any](), False
    for value in (message["content"] for message in messages if "content" in message):
        parts = value if isinstance(value, list) else [value or ""]
        content += ["\n\n", *parts] if has_begun and any(parts) else parts
        has_begun = has_begun or any(parts)
    turn: Message = {"role": "assistant", "content": content}
    name = "reasoning_content"
    if thoughts := [message[name] for message in messages if name in message]:
        turn[name] = "".join(thoughts)
    if calls := [call for message in messages for call in message.get("tool_calls", ())]:
        turn["tool_calls"] = calls
    return turn


def full_name(function: Message) -> str:
    """The name of a function or a call in responses, with its namespace in front if it has one."""
    space, name = function.get("namespace"), str(function.get("name"))
    return f"{space}__{name}" if space else name


def _of_item(path: str, item: Message) -> Iterator[Message]:
    """The messages of an item: what OpenAI has run is a call and its result."""
    kind = str(item.get("type") or "message")
    match item:
        case {"role": str(role)} if kind == "message":
            yield {"role": role, "content": item.get("content")}
        case {"type": "function_call", "call_id": str(name), "name": str(), "arguments": str()}:
            yield _calling(_call(name, full_name(item), item["arguments"]))
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            yield _result(name, output)
        case {"type": "reasoning"}:
            content = item.get("content") or item.get("summary") or []
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            thought = "".join(text for text in texts if isinstance(text, str))
            yield {"role": "assistant", "reasoning_content": thought}
        case {"type": "image_generation_call"}:
            yield {"role": "assistant", "content": [{"type": kind}]}
        case _ if kind.endswith("_call") and kind != "function_call":
            yield from _of_hosted_call(item, kind)
        case {"type": "tool_search_output"}:
            yield _result(_id_of(item), _returned(item.get("tools")))
        case _ if kind.endswith("_call_output") and kind != "function_call_output":
            yield _result(_id_of(item), _returned(item.get("output", item.get("status"))))
        case {"type": "compaction"}:
            raise UsageError(
                f"{path} is a text that only OpenAI can read: send the items themselves"
            )
        case {"id": str()} if kind in _STORED:
            raise UsageError(
                f"{path} refers to what is stored elsewhere, and nothing is stored here: "
                "send the items themselves, as clients do with store: false"
            )
        case _ if kind not in _SILENT:
            raise UsageError(
                f"{path} has to be a message, a reasoning item, or a call of a tool or its "
                f"output, with all of its fields, not {shown(kind)}; leave it out"
            )


def _of_hosted_call(item: Message, kind: str) -> Iterator[Message]:
    """A call of a tool that is no function, and its result, if the item has one. One of OpenAI's
    without any, such as a search, is passed over: what it found is in the answer."""
    results = [(item[name], name == "error") for name in _RESULTS if item.get(name)]
    if not results and "call_id" not in item:
        return
    own = {name: value for name, value in item.items() if name not in _NO_ARGUMENTS}
    given = item.get("arguments", own)
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    function = str(item.get("name") or kind.removesuffix("_call"))
    yield _calling(_call(_id_of(item), function, arguments))
    for output, failed in results[:1]:
        yield _result(_id_of(item), _returned(output), failed=failed)


def _id_of(item: Message) -> str:
    return str(item.get("call_id") or item.get("id"))


def _returned(output: object) -> object:
    """What a tool returned as a content: a text, parts, or anything else in JSON."""
    parts = output if isinstance(output, list) else [output]
    if all(isinstance(part, dict) and part.get("type") in _PARTS for part in parts):
        return parts
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _calling(call: Message) -> Message:
    return {"role": "assistant", "tool_calls": [call]}


def _call(name: str, function: str, arguments: str) -> Message:
    return {"type": "function", "id": name, "function": {"name": function, "arguments": arguments}}


def _result(name: str, content: object, *, failed: bool = False) -> Message:
    """failed: whether the call did; no template has a field for that, so a sentence says it."""
    if failed:
        content = [_FAILED, *(content if isinstance(content, list) else [content or ""])]
    return {"role": "tool", "tool_call_id": name, "content": content}
