"""Messages in a chat template. Nothing of a conversation disappears silently."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokalign.conversation.values import json_inside
from tokalign.errors import UsageError
from tokalign.runtime.chat import ChatTemplate

Message = dict[str, Any]
"""In the form of chat completions; `content` is a text."""


def rendered(
    template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, Any]
) -> str:
    """The text of a conversation, as the template writes it.

    Many templates want the speakers to alternate, after one system message or none. If one refuses
    the messages as they are, or leaves one out, neighbours of one role are merged, then a user
    begins, then a blank message separates two of one speaker with only calls between, and last,
    system messages become the user's. Calls are in the form that the template writes whole. If it
    takes none of all this, tools get empty descriptions and parameters, which those of gpt-oss and
    Seed-OSS need.
    Raises: UsageError with the template's own complaint, and for a message that it leaves out.
    """
    try:
        return _rendered(template, messages, variables)
    except UsageError:
        tools = variables.get("tools") or []
        completed = [_completed(tool) for tool in tools]
        if completed == tools:
            raise
        return _rendered(template, messages, {**variables, "tools": completed})


def _completed(tool: Any) -> Any:
    """A tool with a description of its function and of each parameter, and a list of these."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    given = function.get("parameters")
    schema = {"type": "object", "properties": {}, **(given if isinstance(given, dict) else {})}
    if isinstance(properties := schema["properties"], dict):
        schema["properties"] = {
            name: {**one, "description": one.get("description") or ""}
            if isinstance(one, dict)
            else one
            for name, one in properties.items()
        }
    said = {"description": function.get("description") or "", "parameters": schema}
    return {**tool, "function": {**function, **said}}


def _rendered(
    template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, Any]
) -> str:
    """`rendered` with the tools as they are."""
    has_calls = any("tool_calls" in m or m["role"] == "tool" for m in messages)
    has_tools = bool(variables.get("tools"))
    write_calls = _form_of_calls(template, has_tools) if has_calls else list

    def write(messages: Sequence[Message]) -> str:
        written = write_calls(messages)
        return template.render(_alternating(written) if alternates else written, **variables)

    complaint: UsageError | None = None
    attempt: list[Message] | None = None
    for change, alternates in _CHANGES:  # each of what the one before gave
        before, attempt = attempt, change(messages if attempt is None else attempt)
        if attempt == before and not (alternates and has_calls):
            continue
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
    template may write a message in other words; then the text changes with the message.

    Each is looked for after the one before it, and last anywhere: templates move few messages. So
    many short messages take no longer than one that is as long."""
    forms: dict[str, list[Callable[[str], str]]] = {}
    at = 0
    for index, message in enumerate(messages):
        role, content = message["role"], message["content"].strip()
        if role == "assistant":
            continue
        own = forms.setdefault(role, [str, json_inside])
        tries = ((form, text.find(form(content), begin)) for begin in (at, 0) for form in own)
        if (
            found := next(((form, place) for form, place in tries if place >= 0), None)
        ) is not None:
            own.sort(key=lambda form: form is not found[0])
            at = found[1] + len(content)
            continue
        other = [*messages[:index], {**message, "content": "x"}, *messages[index + 1 :]]
        if write(other) == text:
            return message
    return None


def merged(messages: Iterable[Message]) -> list[Message]:
    """Messages with neighbours of one role joined; later system messages become the user's. The
    results of tools stay apart."""
    groups: list[tuple[str, list[Message]]] = []
    for message in messages:
        role = message["role"]
        if role == "system" and any(other != "system" for other, _ in groups):
            role = "user"
        if groups and groups[-1][0] == role != "tool":
            groups[-1][1].append(message)
        else:
            groups.append((role, [message]))
    return [_joined(role, group) for role, group in groups]


def _joined(role: str, group: Sequence[Message]) -> Message:
    """Messages of one role as one message."""
    text = "\n\n".join(filter(None, (message["content"] for message in group)))
    calls = [call for message in group for call in message.get("tool_calls", ())]
    of_all = {name: value for message in group for name, value in message.items()}
    return {**of_all, "role": role, "content": text, **({"tool_calls": calls} if calls else {})}


def _begun_by_user(messages: Sequence[Message]) -> list[Message]:
    """Merged messages after a user's: an empty one before a greeting of the assistant."""
    roles = [message["role"] for message in messages]
    begin = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    greets = roles[begin : begin + 1] == ["assistant"]
    empty = [{"role": "user", "content": ""}] if greets else []
    return [*messages[:begin], *empty, *messages[begin:]]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Merged messages in which the user says what the system does."""
    return merged({**one, "role": "user"} if one["role"] == "system" else one for one in messages)


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """With a space said by the other speaker between two messages of one, calls and results aside:
    Ministral's template refuses an empty message."""
    others = {"user": "assistant", "assistant": "user"}
    turns, speaker = list[Message](), ""
    for message in messages:
        role = message["role"]
        if role in others and "tool_calls" not in message:
            if role == speaker:
                turns.append({"role": others[role], "content": " "})
            speaker = role
        turns.append(message)
    return turns


_CHANGES: Sequence[tuple[Callable[[Sequence[Message]], list[Message]], bool]] = (
    *((list, False), (merged, False), (_begun_by_user, False), (list, True)),
    *((_without_system, False), (list, True)),
)
"""Changes of messages, one after another, and whether the speakers are made to alternate."""


# -- calls -----------------------------------------------------------------------------------------

Form = Callable[[Sequence[Message]], list[Message]]


@lru_cache(maxsize=8)
def _form_of_calls(template: ChatTemplate, has_tools: bool) -> Form:
    """The first form of messages in which a template writes calls, one or two and after a text,
    and takes results; as they are if there is none. has_tools: some models have another template
    for tools."""
    tools = [_TRIAL_TOOL] if has_tools else None
    for form in (list, _as_json, _one_by_one, _apart, _in_text, _by_user):
        try:
            text = template.render(form(_TRIAL), tools=tools)
        except UsageError:
            continue
        if all(part in text for part in (*_TRIAL_PARTS, *_TRIAL_RESULTS)):
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
    return _as_json([part for message in messages for part in _parts(message)])


def _parts(message: Message) -> Iterator[Message]:
    """A message's text, if it also has calls, and then these and what was thought before them."""
    if "tool_calls" in message and message["content"]:
        yield {"role": message["role"], "content": message["content"]}
        message = {**message, "content": ""}
    yield message


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """With every call in a message of its own, after the text, and its result after it, for a
    template that writes one call and no text beside it, such as that of Llama 3."""
    remaining = deque(part for message in messages for part in _parts(message))
    turns: list[Message] = []
    while remaining:
        message = remaining.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            turns.append(message)
            continue
        results: dict[int, Message] = {}
        own: dict[str, deque[int]] = {}  # their places, by their calls
        while remaining and remaining[0]["role"] == "tool":
            result = remaining.popleft()
            own.setdefault(str(result.get("tool_call_id")), deque()).append(len(results))
            results[len(results)] = result
        for call in calls:
            turns.append({**message, "tool_calls": [call]})
            message = {"role": message["role"], "content": ""}
            if places := own.get(str(call.get("id"))):
                turns.append(results.pop(places.popleft()))
        turns += results.values()
    return turns


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


def _trial_call(said: str, *names: str) -> list[Message]:
    """Calls after a text, and their results."""
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": {"a": "b"}}}
        for name in names
    ]
    turn = {"role": "assistant", "content": said, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": name, "name": name} for name in names]
    return [turn, *({**result, "content": _result(result["name"])} for result in results)]


def _result(name: str) -> str:
    return name.replace("call", "told")


_TRIAL_PARTS = ("firstcall", "what was said", "othercall", "thirdcall", "forthcall")
_TRIAL_RESULTS = [_result(part) for part in _TRIAL_PARTS if " " not in part]
_TRIAL: list[Message] = [
    {"role": "user", "content": "d"},
    *_trial_call("", _TRIAL_PARTS[0]),
    *_trial_call(*_TRIAL_PARTS[1:3]),
    *_trial_call("", *_TRIAL_PARTS[3:]),
]
"""With ids of nine letters, as Mistral's templates want them."""

_TRIAL_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "g",
        "parameters": {"type": "object", "properties": {}},
    },
}
