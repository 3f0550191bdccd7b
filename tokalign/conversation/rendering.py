"""Messages in a chat template. Nothing of a conversation disappears silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokalign.conversation.incoming import json_inside
from tokalign.errors import UsageError
from tokalign.runtime.chat import ChatTemplate

Message = dict[str, Any]
"""In the form of chat completions; `content` is a text."""


def rendered(
    template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, Any]
) -> str:
    """The text of a conversation, as the template writes it.

    Many templates want the speakers to alternate, after one system message. If one refuses the
    messages as they are, or leaves one out, neighbours of one role are merged. Calls are in the
    form that the template writes whole.
    Raises: UsageError with the template's own complaint, and for a message that it leaves out.
    """
    has_calls = any("tool_calls" in m or m["role"] == "tool" for m in messages)
    has_tools = bool(variables.get("tools"))
    write_calls = _form_of_calls(template, has_tools) if has_calls else list

    def write(messages: Sequence[Message]) -> str:
        return template.render(write_calls(messages), **variables)

    complaint: UsageError | None = None
    together = merged(messages)
    for attempt in (messages, together) if together != list(messages) else (messages,):
        try:
            text = write(attempt)
        except UsageError as error:
            complaint = complaint or error
            continue
        lost = _left_out(attempt, text, write)
        if lost is None:
            return text
        complaint = complaint or UsageError(
            f"the model's chat template leaves out a message of the role {lost['role']!r}; say it "
            "as another role"
        )
    assert complaint is not None
    raise complaint


def _left_out(
    messages: Sequence[Message], text: str, write: Callable[[Sequence[Message]], str]
) -> Message | None:
    """An instruction, question or result of a tool that is not in a rendered conversation. A
    template may write a message in other words; then the text changes with the message."""
    for index, message in enumerate(messages):
        content = message["content"].strip()
        if message["role"] == "assistant" or content in text or json_inside(content) in text:
            continue
        other = [*messages[:index], {**message, "content": "x"}, *messages[index + 1 :]]
        if write(other) == text:
            return message
    return None


def merged(messages: Iterable[Message]) -> list[Message]:
    """Messages with neighbours of one role joined; later system messages become the user's. The
    results of tools stay apart."""
    together: list[Message] = []
    for message in messages:
        role = message["role"]
        if role == "system" and any(other["role"] != "system" for other in together):
            role = "user"
        before = together[-1] if together else None
        if before is None or before["role"] != role or role == "tool":
            together.append({**message, "role": role})
            continue
        text = "\n\n".join(filter(None, (before["content"], message["content"])))
        together[-1] = {**before, **message, "role": role, "content": text}
        if calls := [*before.get("tool_calls", ()), *message.get("tool_calls", ())]:
            together[-1]["tool_calls"] = calls
    return together


# -- calls -----------------------------------------------------------------------------------------

Form = Callable[[Sequence[Message]], list[Message]]


@lru_cache(maxsize=8)
def _form_of_calls(template: ChatTemplate, has_tools: bool) -> Form:
    """The first form of messages in which a template writes calls, alone and after a text, and
    takes results; as they are if there is none. has_tools: some models have another template for
    tools."""
    tools = [_TRIAL_TOOL] if has_tools else None
    for form in (list, _as_json, _apart, _in_text, _by_user):
        try:
            text = template.render(form(_TRIAL), tools=tools)
        except UsageError:
            continue
        if all(
            call["function"]["name"] in text for m in _TRIAL for call in m.get("tool_calls", ())
        ):
            return form
    return list


def _as_json(messages: Sequence[Message]) -> list[Message]:
    """With arguments as a text in JSON, and no content where it is empty."""
    return [
        {**message, "content": message["content"] or None, "tool_calls": _calls_as_json(message)}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _calls_as_json(message: Message) -> list[Message]:
    functions = [call["function"] for call in message["tool_calls"]]
    texts = [json.dumps(function["arguments"], ensure_ascii=False) for function in functions]
    return [
        {"type": "function", **call, "function": {**call["function"], "arguments": text}}
        for call, text in zip(message["tool_calls"], texts, strict=True)
    ]


def _apart(messages: Sequence[Message]) -> list[Message]:
    """As `_as_json`, and calls are a message of their own after the text."""

    def parts(message: Message) -> Iterator[Message]:
        calls = {"tool_calls": message["tool_calls"]} if "tool_calls" in message else {}
        if calls and message["content"]:
            yield {name: value for name, value in message.items() if name not in calls}
            message = {"role": message["role"], "content": "", **calls}
        yield message

    return _as_json([part for message in messages for part in parts(message)])


def _in_text(messages: Sequence[Message]) -> list[Message]:
    """With calls as lines of JSON in the text, for a template that knows none."""

    def written(message: Message) -> Message:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        pairs = [{name: call[name] for name in ("name", "arguments")} for call in calls]
        lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs]
        text = "\n".join(filter(None, [message["content"], *lines]))
        others = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**others, "content": text}

    return [written(message) for message in messages]


def _by_user(messages: Sequence[Message]) -> list[Message]:
    """As `_in_text`, and the user says what tools returned, for a template that knows no tools."""

    def written(message: Message) -> Message:
        if message["role"] != "tool":
            return message
        text = f"[Result of {message.get('name', 'a tool')}]\n{message['content']}"
        return {"role": "user", "content": text}

    return merged(map(written, _in_text(messages)))


def _trial_call(said: str, name: str) -> list[Message]:
    """A call after a text, and its result."""
    function = {"name": name, "arguments": {"a": "b"}}
    call = {"id": "123456789", "type": "function", "function": function}
    turn = {"role": "assistant", "content": said, "tool_calls": [call]}
    return [turn, {"role": "tool", "tool_call_id": call["id"], "content": "c"}]


_TRIAL: list[Message] = [
    {"role": "user", "content": "d"},
    *_trial_call("", "firstcall"),
    *_trial_call("e", "othercall"),
]

_TRIAL_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "g",
        "parameters": {"type": "object", "properties": {}},
    },
}
