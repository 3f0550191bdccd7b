"""What no server can answer: a JSON error with the right status, and the next request is served."""

from __future__ import annotations

import gzip
import json
import socket
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import wait_for
from served import WEATHER as FUNCTION
from served import chat, content, demo_settings, request, serving

from tokalign.serve.server import Server

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Wisła"}]
LONG = "Wisła płynie. " * 3000
DEEP = "[" * 900 + "]" * 900
WEATHER = {"type": "function", "function": FUNCTION}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = {"max_body_size": 1 << 20, "read_timeout": 2}
    with serving(demo_settings(draft_model=None, **limits)) as running:
        yield running
        assert is_served(running), "after all that was refused"


def is_served(server: Server) -> bool:
    return chat(server, "Wisła", max_tokens=2).status == 200


def expect(server: Server, status: int, *words: str, **sent: Any) -> None:
    path = sent.pop("path", CHAT)
    reply = request(server, "POST", path, sent.pop("body"), **sent)
    assert reply.status == status, reply.text
    error = reply.json["error"]
    assert ("type" in reply.json) is path.startswith("/v1/messages"), (
        "as Anthropic's clients expect"
    )
    assert set(error) >= {"message", "type"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert "\n" not in error["message"]
    for word in words:
        assert word in error["message"]


NAMED: dict[str, list[Any]] = {
    "max_tokens": [0, -2, True, 1.5],
    "temperature": [True, -0.1, "hot"],
    "top_p": [2],
    "top_k": [-2, 10**30],
    "min_p": [[0.1]],
    "presence_penalty": [10**400],
    "seed": [False, "four"],
    "stream": ["yes"],
    "stream_options": [[]],
    "stop": [[1], "x" * 4097, ["ab"] * 2049],
    "logprobs": [1],
    "top_logprobs": [50],
    "logit_bias": [
        *([1], {"a": 1}, {"-1": 1}, {"4000": 1}),
        *({"7": "1e999"}, {"7": 1e300}, {"7": []}, {"7": None}),
    ],
    "tools": ["weather"],
    "tool_choice": [5, {"type": "function"}],
    "response_format": ["json", {"type": "xml"}],
    "guided_json": [5],
    "guided_choice": [["a", 5]],
    "structured_outputs": [5],
    "chat_template_kwargs": [3],
    "num_draft_tokens": [-1],
    "draft_model": [3],
    "adapters": [3],
    "repetition_penalty": ["x"],
    "thinking": [True],
    "enable_thinking": ["no"],
    "n_predict": [0, "all"],
    "stop_token_ids": [[4000], [-1]],
}
"""Values of which the error says no more than what they are the value of."""
CHAT_FIELDS: list[tuple[str, Any, str]] = [
    *((name, value, name) for name, values in NAMED.items() for value in values),
    ("messages", None, "messages is missing"),
    ("messages", [], "messages is empty"),
    ("continue_final_message", True, "continue_final_message: true is not served"),
    ("add_generation_prompt", False, "add_generation_prompt: false is not served"),
    ("messages", 5, "messages: expected array"),
    ("messages", ["Wisła"], "messages[0]"),
    ("messages", [{"role": "critic", "content": "x"}], "messages[0].role"),
    ("messages", [{"role": 5, "content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ("messages", [{"role": "assistant", "tool_calls": [{}]}], "tool_calls"),
    ("max_tokens", 0, "max_tokens has to be at least 1, or -1 for no limit, not 0"),
    ("max_completion_tokens", "many", "max_completion_tokens: expected int"),
    *(("n", value, "n: expected int") for value in (10**9, 0, True)),
    ("tools", [{"type": "function"}], "tools[0]"),
    ("tools", [{"type": "function", "function": {"name": " "}}], "tools[0]"),
    *(
        ("tools", [{"type": "function", "function": {"name": name}}], "a name without spaces")
        for name in ("get weather", 'say"hi"', "f(x)", "a\nb", "<tag>")
    ),
    ("tools", [{**WEATHER, "type": "browser"}], "tools[0].type"),
    ("tool_choice", "required", "needs tools"),
    ("tool_choice", {"type": "function", "function": {"name": "pogoda"}}, "'pogoda'"),
    ("response_format", {"type": "json_object", "schema": 5}, "JSON schema"),
    ("response_format", {"type": "json_schema"}, "json_schema"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": []}}, "json_schema"),
    ("guided_json", "no JSON", "JSON schema"),
    ("guided_regex", "a(b", "unclosed group"),
    ("guided_regex", "(" + "ab" * 500, "unclosed group"),
    ("guided_choice", [], "choice"),
    ("grammar", "root = x", "GBNF"),
    ("structured_outputs", {"regex": "a(b"}, "regular expression"),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, "exclude each other"),
    ("structured_outputs", {"regex": "a", "json_object": True}, "exclude each other"),
    ("structured_outputs", {"structural_tag": "{}"}, "give tools, or a grammar"),
    ("tokalign", True, "tokalign: expected object"),
    ("tokalign", {"sources": 1}, "tokalign.sources: expected bool"),
    *(
        ("chat_template_kwargs", {name: []}, name)
        for name in ("chat_template", "conversations", "messages", "self", "tools")
    ),
    ("model", 3, "model: expected str"),
    ("presence_penalty", "x", "presence_penalty: expected float"),
]
PROMPTS: list[tuple[Any, str]] = [
    (5, "prompt: expected"),
    (None, "is missing"),
    *((bad, "prompt has to be") for bad in (["a", 5], [1, 2.5], [True], [[1], [2.5]])),
    (["a"] * 129, "128"),
    ({}, "prompt"),
    ([], "prompt"),
    *((bad, "from 0 to 3999") for bad in ([-1], [5, 4000], [1 << 70])),
]
SAID, SPACE = {"role": "assistant", "content": "x"}, {"type": "namespace", "name": "n"}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
TWO = {"role": "user", "content": [RESULT, RESULT]}
RETURNED = {"role": "user", "content": [RESULT, RESULT, {"type": "image"}]}
IMAGE = {"role": "user", "content": [{"type": "input_image"}]}
FOUND = {"type": "search_result", "content": [{"type": "text", "text": "x"}, 5]}
READ = {"type": "document", "source": {"type": "content", "content": [{"type": "text"}]}}
RESPONSE_FIELDS: list[tuple[str, Any, str]] = [
    ("previous_response_id", "resp_1", "send the whole input"),
    ("conversation", "conv_1", "send the whole input"),
    ("background", True, "background"),
    ("input", None, "input is missing"),
    ("input", [], "input is empty"),
    ("input", [{"type": "item_reference", "id": "a"}], "input[0]"),
    ("input", [{"role": "user", "content": 5}], "content"),
    ("tool_choice", {"type": "function", "name": "pogoda"}, "'pogoda'"),
    ("tool_choice", {"type": "function", "function": {"name": "pogoda"}}, "'pogoda'"),
    ("text", {"format": {"type": "json_schema"}}, "json_schema"),
    ("text", {"format": {"type": "xml"}}, "text.format has to be"),
    ("max_output_tokens", 0, "max_output_tokens has to be at least 1"),
    ("max_tokens", 0, "max_tokens has to be at least 1"),
    ("input", [SAID, SAID, IMAGE], "input[2].content[0] is of type 'input_image'"),
    ("input", [SAID, SAID, {"role": "x", "content": ""}], "input[2].role has to be"),
    ("tools", [{"type": "web_search"}, {"type": "function"}], "tools[1] has to be a function"),
    ("tools", [{**SPACE, "tools": [{}, {"type": "function"}]}], "tools[0].tools[1] has to be"),
    *((name, json.loads(DEEP), "nested too deeply") for name in ("metadata", "user")),
]
MESSAGE_FIELDS: list[tuple[str, Any, str]] = [
    ("messages", "Wisła", "messages"),
    ("messages", [5], "messages[0]"),
    ("system", 5, "system"),
    ("tools", [5], "tools"),
    ("messages", [{"role": "user", "content": [{"type": "redacted_thinking"}]}], "is empty"),
    ("tool_choice", {"type": "tool", "name": "pogoda"}, "'pogoda'"),
    ("tool_choice", {"type": "all"}, "'all'"),
    ("stop_sequences", [5], "stop_sequences"),
    ("stop_sequences", ["x" * 4097], "stop_sequences has 4097 characters"),
    ("tools", [{"type": "bash_20250124", "name": "bash"}, {"type": "custom"}], "tools[1]"),
    ("output_config", {"format": {"type": "xml", "schema": {}}}, "output_config.format has to"),
    ("output_config", {"format": {"type": "json_schema"}}, "output_config.format is a json_schema"),
    (
        "output_format",
        {"type": "xml"},
        "output_format has to be text, json_object or json_schema, not 'xml'",
    ),
    ("messages", [TWO, {"role": "critic", "content": "x"}], "messages[1].role"),
    ("messages", [RETURNED], "messages[0].content[2] is of type 'image'"),
    (
        "messages",
        [{"role": "user", "content": [FOUND]}],
        "messages[0].content[0].content[1] has to",
    ),
    ("messages", [{"role": "user", "content": [READ]}], "content[0].source.content[0].text has to"),
]
NOT_SERVED = (
    *(("best_of", 2), ("functions", [{"name": "pogoda"}])),
    *(("allowed_token_ids", [5]), ("truncate_prompt_tokens", 5), ("min_tokens", 5)),
    *(("chat_template", "{{ 1 }}"), ("documents", [{"text": "Wisła"}]), ("logprob_token_ids", [5])),
    *(("prompt_logprobs", value) for value in (1, 0, -1)),
    *(("stop_regex", "a|b"), ("thinking_budget", 50), ("thinking_token_budget", 0)),
    *(("typical_p", 0.9), ("mirostat", 2), ("dry_multiplier", 0.8), ("n_probs", 3)),
    *(("dynatemp_range", 0.5), ("top_n_sigma", 1)),
    *((name, True) for name in ("include_stop_str_in_output", "use_beam_search")),
    *((name, True) for name in ("return_token_ids", "return_tokens_as_token_ids", "no_stop_trim")),
)
IMAGES = [
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
    {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}},
    {"type": "input_audio", "input_audio": {}},
]
TEXT, RESPONSES, COUNTING = "/v1/completions", "/v1/responses", "/v1/messages/count_tokens"
WRONG: list[tuple[str, str, Any, str]] = [
    *((CHAT, *row) for row in CHAT_FIELDS),
    *(
        (CHAT, "messages", [{"role": "user", "content": [i]}], "only text is served")
        for i in IMAGES
    ),
    *((TEXT, "prompt", *row) for row in PROMPTS),
    *((path, *one, f"{one[0]} is not served") for path in (CHAT, TEXT) for one in NOT_SERVED),
    (CHAT, "echo", True, "echo is not served"),
    (TEXT, "add_special_tokens", False, "add_special_tokens is not served"),
    *((RESPONSES, *row) for row in RESPONSE_FIELDS),
    *(("/v1/messages", *row) for row in MESSAGE_FIELDS),
    (COUNTING, "messages", [], "messages is empty"),
]


@pytest.mark.parametrize(("path", "field", "value", "word"), WRONG)
def test_a_wrong_field_is_named(
    server: Server, path: str, field: str, value: Any, word: str
) -> None:
    own = {TEXT: {"prompt": "Wisła"}, RESPONSES: {"input": "Wisła"}}
    given = {**own.get(path, {"messages": MESSAGES}), "max_tokens": 4}
    expect(server, 400, word, path=path, body={**given, field: value})


@pytest.mark.parametrize(
    ("path", "sent", "param"),
    [
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"messages": [{"role": "critic"}]}, "messages[0].role"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, None),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format"),
        (TEXT, {"prompt": [-1]}, "prompt[0]"),
        (TEXT, {"prompt": "x", "grammar": "root = x"}, None),
    ],
)
def test_the_wrong_field_is_told_to_programs(
    server: Server, path: str, sent: dict[str, Any], param: str | None
) -> None:
    reply = request(server, "POST", path, {"messages": MESSAGES, "input": "x", **sent})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_an_answer_that_is_not_stored_is_told_by_openai_s_code(server: Server) -> None:
    body = {"input": "x", "previous_response_id": "resp_1"}
    error = request(server, "POST", RESPONSES, body).json["error"]
    assert error["code"] == "previous_response_not_found"


def test_a_last_message_is_continued_where_that_is_not_refused(server: Server) -> None:
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": "To"}], "max_tokens": 1}
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    assert request(server, "POST", CHAT, body | asked).json["choices"][0]["message"]
    for field, value in asked.items():
        expect(server, 400, f"{field}: ", body=body | {field: not value})


def test_fields_that_ask_for_nothing_else_are_taken(server: Server) -> None:
    harmless: dict[str, Any] = {"stop": ["", ""], "prediction": {"content": 5}, "seed": -1}
    harmless |= {"response_format": {"type": "text"}, "echo": False, "suffix": "", "best_of": 1}
    harmless |= {"bad_words": [], "min_tokens": 0, "use_beam_search": False}
    harmless |= {"thinking_token_budget": -1, "return_token_ids": False, "thinking": {}}
    harmless |= {"truncate_prompt_tokens": -1, "continue_final_message": False}
    harmless |= {"typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0, "top_n_sigma": -1.0}
    harmless |= {"functions": [], "temperature": None, "stream": None, "store": True}
    harmless |= {"stream_options": {"include_usage": None}, "tokalign": {"sources": None}}
    assert content(chat(server, "Wisła", **harmless)) == content(chat(server, "Wisła"))


@pytest.mark.parametrize("value", [5, 0.5, True, "x", {"text": "x"}, [5, {"text": 5}], []])
def test_content_of_any_kind_ends_in_no_failure(server: Server, value: Any) -> None:
    ask = {"role": "user", "content": "x"}
    reasoning = {"input": [{"type": "reasoning", "content": value, "summary": value}, ask]}
    empty = {"messages": [{"role": "user", "content": []}, {"role": "user", "content": value}]}
    for path, body in ((RESPONSES, reasoning), ("/v1/messages", empty)):
        assert request(server, "POST", path, {**body, "max_tokens": 1}).status in (200, 400)


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
        f'{{"prompt": "x", "stream": true, "unknown": {DEEP}}}'.encode(),
        b'{"max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b"\x00\x01\x02",
    ],
)
def test_what_is_no_json_object_in_utf8(server: Server, data: bytes) -> None:
    expect(server, 400, body=data)


def test_a_body_as_editors_and_javascript_write_it(server: Server) -> None:
    """With a byte order mark, and with a character that was cut in the middle."""

    def prompt(text: bytes, before: bytes = b"") -> str:
        fields = b'"max_tokens": 1, "echo": true, "logit_bias": {"\\u0031": 0}'
        body = before + b'{"prompt": "' + text + b'", ' + fields + b"}"
        reply = request(server, "POST", "/v1/completions", body)
        assert reply.status == 200, reply.text
        return reply.json["choices"][0]["text"]

    assert prompt(b"x", BOM_UTF8).startswith("x")
    assert prompt(rb"\ud83d\ude00 \\ud83d \uD83d\u0105 \ude00").startswith("😀 \\ud83d �ą �")


def test_a_template_may_read_any_other_variable(server: Server) -> None:
    same = chat(server, "Wisła", chat_template_kwargs={"tokenizer": "x", "documents": []})
    assert content(same) == content(chat(server, "Wisła"))


def test_a_body_that_is_compressed(server: Server) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    packed, plain = {"Content-Encoding": "gzip"}, {"Content-Encoding": "identity"}
    expect(server, 415, "gzip", body=gzip.compress(json.dumps(body).encode()), headers=packed)
    assert request(server, "POST", CHAT, body, plain).status == 200


@pytest.mark.parametrize(("times", "stream"), [(1, False), (1, True), (9, False)])
def test_a_prompt_longer_than_the_context(server: Server, times: int, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": times * LONG}], "stream": stream}
    expect(server, 400, "prompt is too long: ", " tokens > 2047 maximum", body=body)
    assert chat(server, LONG).json["error"]["code"] == "context_length_exceeded"


def test_errors_below_a_path_are_in_the_form_of_its_api(server: Server) -> None:
    for path, keys in (("/v1/messages/batches", {"type", "error"}), ("/v1/messagesx", {"error"})):
        assert request(server, "POST", path, {}).json.keys() == keys


def test_what_is_not_served_is_not_found(server: Server) -> None:
    models = server.scheduler.models
    loaded = models.loaded
    for field in ("model", "draft_model", "adapters"):
        assert chat(server, "Wisła", max_tokens=1, **{field: "default_model"}).status == 200
        expect(server, 404, "the", "'' is not served", body={"messages": MESSAGES, field: ""})
        assert models.loaded is loaded, "nothing is loaded again"
        expect(server, 404, "someone/else", body={"messages": MESSAGES, field: "someone/else"})
        body = {"messages": MESSAGES, field: "x" * 20_000}
        assert len(request(server, "POST", CHAT, body).text) < 1000
    unknown = {"type": "function", "function": {"name": "x" * 20_000}}
    body = {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": unknown}
    assert len(request(server, "POST", CHAT, body).text) < 1000
    for path in ("/v1", "/v1/chat/completions/x"):
        expect(server, 404, path, path=path, body={"messages": MESSAGES})
        assert request(server, "GET", path).status == 404
    for path in ("/v1/", "/v1/models/"):
        assert len(request(server, "GET", path + "x" * 20_000).text) < 1000
    assert "/v1" in request(server, "POST", "/api/chat", {}).text
    expect(server, 501, "embeddings", path="/v1/embeddings", body={"input": "Wisła"})


def raw(server: Server, data: bytes) -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        try:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))
        except ConnectionError:
            return b""


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", 408),
        (POST + b"Content-Length: 50\r\n\r\n{", 408),
        (b"BREW /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"GET /health HTTP/1.0\r\nHost: [x\r\n\r\n", 403),
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
