"""What no server can answer: a JSON error with the right status, and the next request is served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import wait_for
from served import chat, demo_settings, request, serving

from tokalign.serve.server import Server

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Wisła"}]
LONG = "Wisła płynie. " * 3000
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = {"max_body_size": 1 << 20, "read_timeout": 2}
    with serving(demo_settings(draft_model=None, **limits)) as running:
        yield running


def is_served(server: Server) -> bool:
    return chat(server, "Wisła", max_tokens=2).status == 200


def expect(server: Server, status: int, *words: str, **sent: Any) -> None:
    reply = request(server, "POST", sent.pop("path", CHAT), sent.pop("body"), **sent)
    assert reply.status == status, reply.text
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert "\n" not in error["message"]
    for word in words:
        assert word in error["message"]
    assert is_served(server)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("messages", None, "messages is missing"),
        ("messages", [], "messages is empty"),
        ("messages", "Wisła", "messages"),
        ("messages", ["Wisła"], "messages[0]"),
        ("messages", [{"role": 5, "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ("messages", [{"role": "assistant", "tool_calls": [{}]}], "tool_calls"),
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_completion_tokens", "many", "max_tokens"),
        ("temperature", True, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", 2, "top_p"),
        ("top_k", -1, "top_k"),
        ("top_k", 10**30, "top_k"),
        ("min_p", [0.1], "min_p"),
        ("seed", False, "seed"),
        ("seed", 10**40, "seed"),
        ("seed", "four", "seed"),
        ("n", 10**9, "n has to be"),
        ("n", 0, "n has to be"),
        ("n", True, "n has to be"),
        ("stream", "yes", "stream"),
        ("stream_options", [], "stream_options"),
        ("stop", [1], "stop"),
        ("stop", "x" * 4097, "stop"),
        ("stop", ["ab"] * 2049, "stop"),
        ("logprobs", 1, "logprobs"),
        ("top_logprobs", 50, "top_logprobs"),
        ("logit_bias", [1], "logit_bias"),
        ("logit_bias", {"a": 1}, "logit_bias"),
        ("logit_bias", {"-1": 1}, "logit_bias"),
        ("logit_bias", {"4000": 1}, "logit_bias"),
        ("logit_bias", {"7": "1e999"}, "logit_bias"),
        ("logit_bias", {"7": 1e300}, "logit_bias"),
        ("logit_bias", {"7": []}, "logit_bias"),
        ("logit_bias", {"7": None}, "logit_bias"),
        ("tools", "weather", "tools"),
        ("tools", [{"type": "function"}], "tools[0]"),
        ("tools", [{**WEATHER, "type": "browser"}], "tools[0].type"),
        ("tool_choice", 5, "tool_choice"),
        ("tool_choice", "required", "needs tools"),
        ("tool_choice", {"type": "function"}, "tool_choice"),
        ("tool_choice", {"type": "function", "function": {"name": "pogoda"}}, "'pogoda'"),
        ("response_format", "json", "response_format"),
        ("response_format", {"type": "xml"}, "response_format"),
        ("response_format", {"type": "json_schema"}, "json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": []}}, "json_schema"),
        ("guided_json", {"type": "strng"}, "strng"),
        ("guided_json", "no JSON", "JSON schema"),
        ("guided_json", 5, "guided_json"),
        ("guided_regex", "a(b", "regular expression"),
        ("guided_choice", ["a", 5], "guided_choice"),
        ("guided_choice", [], "choice"),
        ("grammar", "root = x", "GBNF"),
        ("structured_outputs", {"regex": "a(b"}, "regular expression"),
        ("structured_outputs", 5, "structured_outputs"),
        ("chat_template_kwargs", 3, "chat_template_kwargs"),
        ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}, "chat_template"),
        ("chat_template_kwargs", {"messages": []}, "messages"),
        ("chat_template_kwargs", {"tools": []}, "tools"),
        ("num_draft_tokens", -1, "num_draft_tokens"),
        ("draft_model", 3, "draft_model"),
        ("model", 3, "model has to be a text"),
        ("adapters", 3, "adapter"),
        ("repetition_penalty", "x", "repetition_penalty"),
    ],
)
def test_a_wrong_field_is_named(server: Server, field: str, value: Any, word: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, field: value}
    expect(server, 400, word, body=body)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (5, "not 5"),
        (None, "is missing"),
        (["a", 5], "not a list"),
        ([1, 2.5], "not a list"),
        ([True], "not a list"),
        ([[1], [2.5]], "not a list"),
        (["a"] * 129, "128"),
        ({}, "prompt"),
        ([], "prompt"),
    ],
)
def test_a_prompt_that_is_no_text(server: Server, value: Any, word: str) -> None:
    expect(server, 400, word, path="/v1/completions", body={"prompt": value})


@pytest.mark.parametrize("ids", [[-1], [5, 4000], [1 << 70]])
def test_ids_that_the_model_does_not_have(server: Server, ids: list[int]) -> None:
    body = {"prompt": ids}
    expect(server, 400, "prompt[", "from 0 to 3999", path="/v1/completions", body=body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("functions", [{"name": "pogoda"}]),
    ],
)
def test_what_is_not_served_is_refused(server: Server, field: str, value: Any) -> None:
    for path, given in ((CHAT, {"messages": MESSAGES}), ("/v1/completions", {"prompt": "Wisła"})):
        expect(server, 400, f"{field} is not served", path=path, body={**given, field: value})


def test_fields_that_ask_for_nothing_else_are_taken(server: Server) -> None:
    harmless: dict[str, Any] = {"stop": ["", ""], "prediction": {"content": 5}, "seed": -1}
    harmless |= {"response_format": {"type": "text"}, "echo": False, "suffix": "", "best_of": 1}
    body = {"messages": MESSAGES, "max_tokens": 2, "functions": [], **harmless}
    assert request(server, "POST", CHAT, body).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"",
        b'{"messages": [',
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b"[1]",
        b'"text"',
        b"null",
        b"[" * 100_000,
        b'{"max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"\x00\x01\x02",
    ],
)
def test_what_is_no_json_object_in_utf8(server: Server, data: bytes) -> None:
    expect(server, 400, body=data)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(server: Server, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "stream": stream}
    expect(server, 400, "prompt is too long", body=body)
    assert chat(server, LONG).json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("field", ["model", "draft_model", "adapters"])
def test_what_is_not_served_is_not_found(server: Server, field: str) -> None:
    body = {"messages": MESSAGES, field: "someone/else"}
    expect(server, 404, "someone/else", body=body)


@pytest.mark.parametrize("path", ["/v1", "/v1/chat/completions/x"])
def test_there_is_nothing_at_other_paths(server: Server, path: str) -> None:
    expect(server, 404, path, path=path, body={"messages": MESSAGES})
    assert request(server, "GET", path).status == 404


def test_embeddings_are_not_implemented(server: Server) -> None:
    expect(server, 501, "embeddings", path="/v1/embeddings", body={"input": "Wisła"})


@pytest.mark.parametrize(
    ("path", "field", "value", "words"),
    [
        ("/v1/responses", "previous_response_id", "resp_1", "send the whole input"),
        ("/v1/responses", "conversation", "conv_1", "send the whole input"),
        ("/v1/responses", "background", True, "background"),
        ("/v1/responses", "input", None, "input is missing"),
        ("/v1/responses", "input", [{"type": "computer_call"}], "input[0]"),
        (
            "/v1/responses",
            "input",
            [{"role": "user", "content": [{"type": "input_image"}]}],
            "text",
        ),
        ("/v1/responses", "input", [{"role": "user", "content": 5}], "content"),
        ("/v1/responses", "tools", [{"type": "function"}], "tools[0]"),
        ("/v1/responses", "tool_choice", {"type": "function", "name": "pogoda"}, "'pogoda'"),
        ("/v1/responses", "text", {"format": {"type": "json_schema"}}, "json_schema"),
        ("/v1/responses", "max_output_tokens", 0, "max_tokens"),
        ("/v1/messages", "messages", "Wisła", "messages"),
        ("/v1/messages", "messages", [5], "messages[0]"),
        (
            "/v1/messages",
            "messages",
            [*MESSAGES, {"role": "assistant", "content": "x"}],
            "end with",
        ),
        ("/v1/messages", "system", 5, "system"),
        ("/v1/messages", "tools", [5], "tools"),
        ("/v1/messages", "tools", [{"type": "custom"}], "tools[0]"),
        ("/v1/messages", "tool_choice", {"type": "tool", "name": "pogoda"}, "'pogoda'"),
        ("/v1/messages", "stop_sequences", [5], "stop"),
        ("/v1/messages/count_tokens", "messages", [], "messages is empty"),
    ],
)
def test_a_wrong_field_of_another_api(
    server: Server, path: str, field: str, value: Any, words: str
) -> None:
    own = {"input": "Wisła"} if path == "/v1/responses" else {"messages": MESSAGES}
    reply = request(server, "POST", path, {**own, "max_tokens": 4, field: value})
    assert reply.status == 400, reply.text
    error = reply.json["error"]
    assert error["type"] == "invalid_request_error"
    assert ("type" in reply.json) is path.startswith("/v1/messages")
    assert words in error["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}},
        {"type": "input_audio", "input_audio": {}},
    ],
)
def test_no_address_in_a_request_is_fetched(server: Server, part: Any) -> None:
    body = {"messages": [{"role": "user", "content": [part]}]}
    expect(server, 400, "only text is served", body=body)


def raw(server: Server, data: bytes) -> bytes:
    """What comes back for these bytes."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        try:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: ten\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{", 408),
        (b"BREW /coffee HTTP/1.1\r\n\r\n", 501),
        (b"GET http://[x/v1/models HTTP/1.1\r\n\r\n", 404),
        (b"POST http://[x/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 404),
        (b"GET /health HTTP/1.1\r\nHost: [x\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_hardly_http(server: Server, head: bytes, status: int) -> None:
    reply = raw(server, head)
    first, _, rest = reply.partition(b"\r\n")
    body = rest.partition(b"\r\n\r\n")[2] if first.startswith(b"HTTP/") else reply
    if first.startswith(b"HTTP/"):
        assert first.split()[1] == str(status).encode()
    assert "message" in json.loads(body)["error"]
    assert is_served(server)


def test_one_connection_more_than_there_are_places_is_closed() -> None:
    settings = demo_settings(draft_model=None, max_connections=1)
    with serving(settings) as small:
        address = urlsplit(small.url)
        with socket.create_connection((address.hostname, address.port)) as first:
            first.sendall(b"GET /hea")  # and no end
            wait_for(lambda: not raw(small, b"GET /health HTTP/1.0\r\n\r\n"))
        wait_for(lambda: raw(small, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/"))


def test_a_field_that_is_null_or_unknown_is_ignored(server: Server) -> None:
    plain = chat(server, "Wisła").json["choices"]
    body = {"temperature": None, "stop": None, "seed": None, "stream": None, "store": True}
    assert chat(server, "Wisła", **body).json["choices"] == plain
