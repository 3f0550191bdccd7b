"""How much a client may ask for, and the body of a request read within that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from tokalign.serve.refusal import Refusal

_CHUNK = 1 << 16
_DISCARDED = 1 << 26
"""Of a body that is refused, so much is read, so that the client gets to read the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a single client can take from the others.

    body_bytes: of a request. read_seconds: for sending one, and for taking a part of the answer.
    answer_seconds: after which an answer ends with finish reason "length".
    waiting: requests that may wait for their turn; one more is refused with status 429.
    connections: open at the same time; one more is closed at once.
    """

    body_bytes: int = 8 << 20
    read_seconds: float = 30.0
    answer_seconds: float = 1800.0
    waiting: int = 128
    connections: int = 512


def read_body(
    stream: BinaryIO,
    headers: Mapping[str, str],
    limits: Limits,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """The body of a request. Raises: Refusal for one that is too long, too slow or cut off."""
    length = _length(headers)
    deadline = clock() + limits.read_seconds
    if length > limits.body_bytes:
        _discard(stream, min(length, _DISCARDED), deadline, clock)
        raise Refusal(
            413,
            f"the body has {length} bytes, but at most {limits.body_bytes} are read; shorten the "
            "request, or start the server with a larger --max-body-size",
            code="request_too_large",
        )
    parts: list[bytes] = []
    left = length
    while left:
        if clock() > deadline:
            raise _too_slow(limits)
        try:
            part = stream.read(min(left, _CHUNK))
        except TimeoutError as error:
            raise _too_slow(limits) from error
        if not part:
            raise Refusal(400, f"the body ends {left} bytes before its Content-Length")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _length(headers: Mapping[str, str]) -> int:
    given = headers.get("Content-Length")
    if given is None:
        raise Refusal(411, "a Content-Length header is required; chunked bodies are not read")
    if not (given.isascii() and given.isdigit() and len(given) < 20):
        raise Refusal(400, f"Content-Length has to be a number of bytes, not {given[:40]!r}")
    return int(given)


def _discard(stream: BinaryIO, length: int, deadline: float, clock: Callable[[], float]) -> None:
    try:
        while length > 0 and clock() < deadline and (part := stream.read(min(length, _CHUNK))):
            length -= len(part)
    except TimeoutError:
        return


def _too_slow(limits: Limits) -> Refusal:
    return Refusal(408, f"the body did not arrive within {limits.read_seconds:g} seconds")
