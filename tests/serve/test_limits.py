"""A body is read within its limits, whatever a client sends and however slowly."""

from __future__ import annotations

import socket
from io import BufferedReader, BytesIO
from threading import Thread
from time import monotonic, sleep

import pytest

from tokalign.serve import Settings
from tokalign.serve.admission import Refusal, RequestStream, read_body

SETTINGS = Settings(max_body_size=100, read_timeout=10)


def read(data: bytes, length: object) -> bytes:
    headers = {} if length is None else {"Content-Length": str(length)}
    return read_body(BytesIO(data), headers, SETTINGS)


@pytest.mark.parametrize("length", [0, 1, 99, 100])
def test_a_body_of_a_known_length(length: int) -> None:
    assert read(b"x" * 100, length) == b"x" * length


@pytest.mark.parametrize(
    ("data", "length", "status"),
    [
        (b"", None, 411),
        (b"", "1e2", 400),
        (b"", "-1", 400),
        (b"", "+1", 400),
        (b"", "١", 400),
        (b"", "9" * 30, 400),
        (b"x" * 101, 101, 413),
        (b"x", 10**15, 413),
        (b"x" * 50, 100, 400),
    ],
)
def test_a_body_that_is_refused(data: bytes, length: object, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        read(data, length)
    assert refused.value.status == status


def test_a_body_that_is_too_long_is_read_all_the_same() -> None:
    """Else the client's connection is reset before it has read the answer."""
    stream = BytesIO(b"x" * 1000)
    with pytest.raises(Refusal):
        read_body(stream, {"Content-Length": "1000"}, SETTINGS)
    assert stream.read() == b""


def test_a_body_that_comes_drop_by_drop_has_no_more_time_than_another() -> None:
    """No read of the socket takes long; only all of them together do."""
    server, client = socket.socketpair()

    def drip() -> None:
        try:
            for _ in range(100):
                client.sendall(b"x")
                sleep(0.05)
        except OSError:
            return

    with server, client:
        Thread(target=drip, daemon=True).start()
        started = monotonic()
        stream = BufferedReader(RequestStream(server, 0.3))
        with pytest.raises(Refusal) as refused:
            read_body(stream, {"Content-Length": "100"}, SETTINGS)
        assert refused.value.status == 408
        assert monotonic() - started < 2
        assert server.gettimeout() == 0.3
