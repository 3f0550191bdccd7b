"""Histories as a chat template reads them, without the path that each message has in a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokalign.conversation.history import named, read_messages
from tokalign.conversation.rendering import Message


def template_messages(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Messages in the form of chat completions, each content a text; as `read_messages`."""
    return read_messages(named("messages", messages))
