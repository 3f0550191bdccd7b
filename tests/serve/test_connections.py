"""Clients that are slow, silent, half gone or many, and streams that are never silent."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from processes import wait_for
from scripted_scheduler import Script, begun, say, scripted
from served import request

from tokalign.conversation.answer_form import AnswerForm
from tokalign.runtime.rounds import Reading
from tokalign.serve import Settings, streams
from tokalign.serve import server as server_module
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Emitted
from tokalign.serve.request import ApiRequest
from tokalign.serve.server import Server, _listening

Put = Callable[[Any], None]
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
}


def connected(
    server: Server, path: str, body: dict[str, Any], *, times: int = 1, keep: bool = False
) -> socket.socket:
    """A connection that has sent this request so many times. keep: for further ones."""
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += "" if keep else "Connection: close\r\n"
    client.sendall((f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data) * times)
    return client


def rest(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def words(asked: ApiRequest, put: Put) -> None:
    say(begun(asked, put), "Wisła", " płynie", ".")


def endless(asked: ApiRequest, put: Put) -> None:
    """An answer whose first word comes when nobody waits for it any more."""
    begun(asked, put)
    asked.abandoned.wait(60)
    put(None)


def held_back() -> tuple[threading.Event, Script]:
    """An answer that has begun and goes on once the event is set."""
    ready = threading.Event()

    def script(asked: ApiRequest, put: Put) -> None:
        answer = begun(asked, put)
        ready.wait(60)
        say(answer, "Wisła", ".")

    return ready, script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_only_stops_sending_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    ready, script = held_back()
    with scripted(monkeypatch, script) as (server, _):
        client = connected(server, path, {**PATHS[path], "stream": stream})
        client.shutdown(socket.SHUT_WR)
        threading.Timer(0.3, ready.set).start()  # some of the status line is there by now
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert "Wisła" in answer.decode() or "Wis\\u0142a" in answer.decode()


def test_a_connection_is_closed_after_the_last_answer_to_a_client_that_only_stops_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for no further request, and answers all that were sent at once."""
    ready, script = held_back()
    monkeypatch.setattr(server_module, "_KEEP_ALIVE", 600)
    with scripted(monkeypatch, script) as (server, scheduler):
        client = connected(server, "/v1/completions", {"prompt": "a"}, times=2, keep=True)
        wait_for(lambda: bool(scheduler.asked))
        client.shutdown(socket.SHUT_WR)
        threading.Timer(0.3, ready.set).start()
        assert rest(client).count(b"HTTP/1.1 200 OK") == 2


def test_a_further_request_whose_rest_cannot_come_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, script = held_back()
    with scripted(monkeypatch, script) as (server, scheduler):
        client = connected(server, "/v1/completions", {"prompt": "a"}, keep=True)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        client.sendall(b"Content-Length: 99\r\n\r\n{")
        wait_for(lambda: bool(scheduler.asked))
        client.shutdown(socket.SHUT_WR)
        threading.Timer(0.3, ready.set).start()
        answers = rest(client)
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        assert b"before its Content-Length" in answers


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed_whether_or_not_it_had_stopped_sending(
    monkeypatch: pytest.MonkeyPatch, stream: bool, half: bool
) -> None:
    monkeypatch.setattr(streams, "_SILENCE", 0.05)
    with scripted(monkeypatch, endless) as (server, scheduler):
        client = connected(server, "/v1/completions", {"prompt": "a", "stream": stream})
        wait_for(lambda: bool(scheduler.asked))
        if half:
            client.shutdown(socket.SHUT_WR)
        client.close()
        wait_for(scheduler.asked[0].abandoned.is_set)


def test_a_client_that_takes_nothing_of_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(asked: ApiRequest, put: Put) -> None:
        answer = begun(asked, put)
        while not asked.abandoned.is_set():
            say(answer, *("x" * 10_000 for _ in range(9)), "")
            asked.abandoned.wait(0.01)

    body = {"prompt": ["a"] * 9, "stream": True}
    with (
        scripted(monkeypatch, flood, read_timeout=0.3) as (server, scheduler),
        connected(server, "/v1/completions", body),
    ):
        wait_for(lambda: bool(scheduler.asked) and scheduler.asked[0].abandoned.is_set())


def test_idle_streams_take_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = threading.Semaphore(0)

    def script(asked: ApiRequest, put: Put) -> None:
        begun(asked, put)
        scripts.release()  # and the thread of the script ends, not the answer

    with scripted(monkeypatch, script) as (server, _), ExitStack() as stack:
        before = threading.active_count()
        for _ in range(200):
            body = {"prompt": "a", "stream": True}
            stack.enter_context(connected(server, "/v1/completions", body))
        for _ in range(200):
            assert scripts.acquire(timeout=60)
        assert request(server, "GET", "/health").status == 200
        wait_for(lambda: threading.active_count() <= before + 41)  # anyio has 40 at most


def blank(asked: ApiRequest, put: Put) -> None:
    """An answer of which nothing can be shown yet, however much of it comes."""

    def put_in_form(item: Any) -> None:
        item.form = AnswerForm(thought=("<think>", "</think>"))
        put(item)

    begun(asked, put_in_form)
    while not asked.abandoned.wait(0.001):
        put(Emitted(text=" ", token=5))
    put(None)


@pytest.mark.parametrize("script", [endless, blank])
@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/v1/chat/completions", b": keep-alive\n\n"),
        ("/v1/completions", b": keep-alive\n\n"),
        ("/v1/responses", b"event: response.in_progress\n"),
        ("/v1/messages", b"event: ping\n"),
    ],
)
def test_a_stream_is_never_silent(
    monkeypatch: pytest.MonkeyPatch, path: str, sign: bytes, script: Script
) -> None:
    monkeypatch.setattr(streams, "_SILENCE", 0.02)
    with (
        scripted(monkeypatch, script) as (server, _),
        connected(server, path, {**PATHS[path], "stream": True}) as client,
    ):
        seen = b""
        while seen.count(sign) < 3:
            part = client.recv(1 << 16)
            assert part, seen
            seen += part


@pytest.mark.parametrize("path", PATHS)
def test_a_step_of_reading_is_told_in_one_event(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """go-openai gives up a stream that has more than 300 lines without data before its next."""
    monkeypatch.setattr(streams, "_SILENCE", 60)

    def read_first(asked: ApiRequest, put: Put) -> None:
        answer = begun(asked, put)
        for done in range(asked.max_tokens or 0):
            put(Reading(done, 9))
        say(answer, "Wisła", " płynie", ".")

    counts = []
    for script in (words, read_first):
        with scripted(monkeypatch, script) as (server, _):
            body = {**PATHS[path], "stream": True, "max_tokens": 9}
            counts.append(request(server, "POST", path, body).text.count("\n\n"))
    assert counts[1] - counts[0] == 9


@pytest.mark.parametrize("path", PATHS)
def test_a_failure_is_a_status_before_and_an_event_after_the_beginning(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def script(asked: ApiRequest, put: Put) -> None:
        if asked.stop_texts != ("early",):
            begun(asked, put)
        put(Refusal(503, "the server is shutting down"))

    stop = "stop_sequences" if path == "/v1/messages" else "stop"
    with scripted(monkeypatch, script) as (server, _):
        for stream in (False, True):
            body = {**PATHS[path], "stream": stream, stop: ["early"]}
            assert request(server, "POST", path, body).status == 503
        whole = request(server, "POST", path, PATHS[path])
        assert whole.status == 503
        events = request(server, "POST", path, {**PATHS[path], "stream": True})
        assert events.status == 200
        assert "shutting down" in events.text


def test_an_answer_that_was_given_up_is_never_written_as_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(asked: ApiRequest, put: Put) -> None:
        begun(asked, put)
        put(None)

    with scripted(monkeypatch, script) as (server, _):
        assert request(server, "POST", "/v1/completions", {"prompt": "a"}).status == 503


def test_idle_connections_stay_open_for_longer_than_clients_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from openai._constants import DEFAULT_CONNECTION_LIMITS as LIMITS

    expiry = LIMITS.keepalive_expiry
    assert expiry is not None
    with scripted(monkeypatch, words) as (server, *_):
        assert server._http.config.timeout_keep_alive >= 2 * expiry


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_every_address_is_every_one_of_both_kinds() -> None:
    with _listening("::", 0) as listening:
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()


def test_a_server_may_open_as_many_connections_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on macOS begins with 256 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(256, len(os.listdir("/dev/fd")) + 64)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        with scripted(monkeypatch, words) as (server, _):
            assert request(server, "GET", "/v1/models").status == 200
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > Settings().max_connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_body_may_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, words) as (server, _):
        host, port = server.url.removeprefix("http://").split(":")
        data = b'{"prompt": "a"}'
        with socket.create_connection((host, int(port)), timeout=60) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
            assert rest(client).startswith(b"HTTP/1.1 200")


def test_the_bodies_of_all_apis_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(monkeypatch, words) as (server, _):
        document = request(server, "GET", "/openapi.json").json
    assert set(document["paths"]) > set(PATHS)
    schemas = document["components"]["schemas"]
    for path in PATHS:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        assert "temperature" in schemas[name]["properties"]


def test_a_request_may_name_its_host_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As clients of a proxy write it. A host that may not ask may not ask there either."""
    with scripted(monkeypatch, words) as (server, _):
        for url in (server.url, server.url.upper()):
            assert request(server, "GET", f"{url}/v1/models").json["data"] == [{"id": "model"}]
            for path, body in PATHS.items():
                assert request(server, "POST", f"{url}{path}?beta=true", body).status == 200
        refused = request(server, "GET", "http://elsewhere.example:80/v1/models")
        assert (refused.status, refused.json["error"]["code"]) == (403, "host_not_allowed")
        assert request(server, "GET", f"{server.url}/nowhere").status == 404
