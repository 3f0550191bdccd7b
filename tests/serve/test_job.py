"""A request's own parts: its body, read within limits; its stop texts; and its client."""

from __future__ import annotations

import socket
from io import BufferedReader, BytesIO
from threading import Thread
from time import monotonic, sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import asked_for

from tokalign.serve import Settings
from tokalign.serve.admission import Refusal, RequestStream, read_body
from tokalign.serve.job import StopTexts

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


texts = st.text("aąb ", min_size=1, max_size=4)


@given(st.lists(st.text("aąb ", max_size=5), max_size=8), st.lists(texts, min_size=1, max_size=3))
def test_a_stop_text_is_found_where_the_whole_text_has_it(
    parts: list[str], stops: list[str]
) -> None:
    whole = "".join(parts)
    ends = [(whole.find(stop) + len(stop), stop) for stop in stops if stop in whole]
    finder, before, found = StopTexts(stops), 0, None
    for part in parts:
        end = finder.end_in(part)
        if end is not None:
            found = before + end[0], end[1]
            break
        before += len(part)
    assert found == min(ends, default=None)


def test_a_client_is_gone_when_it_has_closed_its_end() -> None:
    ours, theirs = socket.socketpair()
    asked = asked_for(connection=ours)
    assert not asked.is_gone
    theirs.sendall(b"more")  # what it sends is not its end
    assert not asked.is_gone
    ours.recv(4)
    theirs.close()
    assert asked.is_gone
    ours.close()
    assert asked.is_gone
    assert not asked_for().is_gone
