"""What uvicorn's connections lack: bounds on time and number, and clients that only stop sending.

A client that closes its sending side may have left or wait for its answer. The first bytes, which
every answer has, are written early to tell: a client that has left resets the connection.
"""

from __future__ import annotations

import json
from asyncio import BaseTransport, TimerHandle, Transport
from socket import SO_ERROR, SOL_SOCKET
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokalign.serve.admission import Refusal
from tokalign.serve.answer import openai_error

_OPENING = b"HTTP/1.1 "
_FIRST_PROBE, _SLOWEST_PROBES = 0.02, 1.0
"""Seconds between the bytes of the opening: twice as many each time."""

_CUT = "the body ends before its Content-Length"

_GRACE = 5.0
"""Seconds that a request, head and body, has on top of its time: a slow body's refusal is read."""


class Connection(H11Protocol):
    """A client's connection.

    most: how many may be open; one more is closed at once. seconds: bound on the time that a
    request takes to arrive, and that a client takes nothing of its answer.
    """

    most: int
    seconds: float
    _has_ended = False  # whether the client sends no more
    _arriving: TimerHandle | None = None
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", _Opened(cast("Transport", transport))))
        if len(self.connections) > self.most:
            self.transport.abort()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._arriving)
        _cancel(self._stalled)

    def data_received(self, data: bytes) -> None:
        """Bound the time of the whole request, not only of each part."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            _cancel(self._arriving)
            self._arriving = None

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. Returns: whether it may still get an answer."""
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn declares
        if cycle is None or cycle.response_complete:
            return False
        self._has_ended = True
        if cycle.more_body:
            self.send_400_response(_CUT)
        else:
            self._probe(_FIRST_PROBE)
        return True

    def on_response_complete(self) -> None:
        """Close after the last answer to a client that sends no more."""
        super().on_response_complete()
        if not self._has_ended:
            return
        if self.cycle.response_complete:
            self.transport.close()
        elif self.cycle.more_body:  # the rest of a further request cannot come
            self.send_400_response(_CUT)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    def send_400_response(self, msg: str) -> None:
        """Refuse broken HTTP in the form of every other refusal."""
        if self.conn.our_state is h11.SEND_RESPONSE or self.conn.our_state is h11.IDLE:
            data = json.dumps(openai_error(Refusal(400, msg))).encode()
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(data))))
            response = h11.Response(status_code=400, headers=headers, reason="Bad Request")
            for event in (response, h11.Data(data=data), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_request(self) -> None:
        if self._arriving is None:
            seconds = self.seconds + _GRACE
            self._arriving = self.loop.call_later(seconds, self.transport.abort)

    def _probe(self, seconds: float) -> None:
        """Write one more byte of the opening, unless the one before was answered by a reset."""
        if self.cycle.response_started or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(SOL_SOCKET, SO_ERROR):
            self.transport.abort()
            return
        cast("_Opened", self.transport).open_further()
        self.loop.call_later(seconds, self._probe, min(2 * seconds, _SLOWEST_PROBES))


class _Opened:
    """A transport on which the beginning of the first answer may be written early."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def open_further(self) -> None:
        self._transport.write(_OPENING[self._written : self._written + 1])
        self._written = min(self._written + 1, len(_OPENING))

    def write(self, data: bytes) -> None:
        if self._written and data:
            assert data.startswith(_OPENING)
            data, self._written = data[self._written :], 0
        self._transport.write(data)


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
