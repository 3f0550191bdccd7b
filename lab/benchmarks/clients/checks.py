"""What a check of a client is, and what the clients are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

QUESTION = "Is the Vistula longer than the Oder? Answer as JSON with its name and length."
SECONDS = 900
MOST = 48
"""Tokens of an answer."""


class River(BaseModel):
    """A river. Its schema bounds every field, so that an answer that follows it ends."""

    name: Literal["Vistula", "Oder"]
    length_km: int = Field(ge=1, le=9999)


TOOL: dict[str, Any] = {
    "name": "river_length",
    "description": "Looks up how long a river is.",
    "parameters": {
        "type": "object",
        "properties": {"river": {"type": "string", "enum": ["Vistula", "Oder"]}},
        "required": ["river"],
        "additionalProperties": False,
    },
}
"""A tool in OpenAI's form."""


class Server(NamedTuple):
    """url: without a path. node: the folder with the npm packages."""

    url: str
    model: str
    node: Path

    @property
    def v1(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"


Check = Callable[[Server], Any]


class Client(NamedTuple):
    """An application or library. requirements: its packages, the first of which it is named by.

    checks: by what is asked. One returns what is shown, and raises if it did not work.
    """

    requirements: tuple[str, ...]
    checks: dict[str, Check]


CLIENTS: dict[str, Client] = {}


def client(name: str, *requirements: str) -> Callable[[str], Callable[[Check], Check]]:
    """Note a client. Returns: what notes a function as one of its checks, by what is asked."""
    checks = CLIENTS.setdefault(name, Client(requirements, {})).checks

    def check(asked: str) -> Callable[[Check], Check]:
        def noted(made: Check) -> Check:
            checks[asked] = made
            return made

        return noted

    return check


def require(fits: Any, what: str) -> None:
    """Raises: ValueError unless it fits."""
    if not fits:
        raise ValueError(what)


def text_of(parts: Any) -> str:
    """The text of a stream's parts. Raises: ValueError if there is none, or it came in one."""
    found = [part for part in parts if part]
    text = "".join(found)
    require(text, "no text")
    require(len(found) > 1, "the text came in one part")
    return text


async def parts_of(stream: AsyncIterator[Any]) -> list[Any]:
    """All parts of an asynchronous stream."""
    return [part async for part in stream]


def user(text: str = QUESTION) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]
