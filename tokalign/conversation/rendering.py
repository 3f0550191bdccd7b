"""Messages in a chat template. Nothing of a conversation disappears silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    messages as they are, or leaves one out, neighbours of one role are merged.
    Raises: UsageError with the template's own complaint, and for a message that it leaves out.
    """

    def write(messages: Sequence[Message]) -> str:
        return template.render(messages, **variables)

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
