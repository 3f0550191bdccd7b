"""How much a client may ask for, and the body of a request read within that."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase
from socket import socket
from time import monotonic
from typing import Any, BinaryIO

from tokalign.serve.refusal import Refusal

_CHUNK = 1 << 16
_DISCARDED = 1 << 26
"""Bytes of the body of a refused request that are read at most."""


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


class RequestStream(RawIOBase):
    """The bytes of one request, all of which have to arrive within so many seconds.

    The timeout of a socket bounds only the time between two of them.
    """

    def __init__(self, connection: socket, seconds: float) -> None:
        """seconds: from now on; also the timeout of the socket for what is written."""
        self._connection, self._seconds = connection, seconds
        self._deadline = monotonic() + seconds

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `RawIOBase`. Raises: TimeoutError."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)


def read_body(stream: BinaryIO, headers: Mapping[str, str], limits: Limits) -> bytes:
    """The body of a request. Raises: Refusal for one that is too long, too slow or cut off."""
    length = _length(headers)
    if length > limits.body_bytes:
        discard_body(stream, headers)
        raise Refusal(
            413,
            f"the body has {length} bytes, but at most {limits.body_bytes} are read; shorten the "
            "request, or start the server with a larger --max-body-size",
            code="request_too_large",
        )
    try:
        data = stream.read(length)
    except TimeoutError as error:
        raise Refusal(
            408, f"the request did not arrive within {limits.read_seconds:g} seconds"
        ) from error
    if len(data) < length:
        raise Refusal(400, f"the body ends {length - len(data)} bytes before its Content-Length")
    return data


def discard_body(stream: BinaryIO, headers: Mapping[str, str]) -> None:
    """Read the body of a request that is refused, so that the client gets to read the answer.

    Left unread, it would reset the connection. None of it is kept.
    """
    with suppress(TimeoutError, Refusal):
        left = min(_length(headers), _DISCARDED)
        while left and (part := stream.read(min(left, _CHUNK))):
            left -= len(part)


def _length(headers: Mapping[str, str]) -> int:
    given = headers.get("Content-Length")
    if given is None:
        raise Refusal(411, "a Content-Length header is required; chunked bodies are not read")
    if not (given.isascii() and given.isdigit() and len(given) < 20):
        raise Refusal(400, f"Content-Length has to be a number of bytes, not {given[:40]!r}")
    return int(given)
