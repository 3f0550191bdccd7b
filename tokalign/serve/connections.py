"""What uvicorn's connections lack: bounds on time and number, and refusals in our form."""

from __future__ import annotations

import json
from asyncio import BaseTransport, TimerHandle, Transport
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokalign.serve.admission import Refusal
from tokalign.serve.answer import openai_error

_GRACE = 5.0
"""Seconds that a request, head and body, has on top of its time: a slow body's refusal is read."""


class Connection(H11Protocol):
    """A client's connection.

    most: how many may be open; one more is closed at once. seconds: bound on the time that a
    request takes to arrive, and that a client takes nothing of its answer.
    """

    most: int
    seconds: float
    _arriving: TimerHandle | None = None
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
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


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
