"""The chat page: how it is sent, what it is told of every token, and the page in a real browser."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256

import pytest
from served import chat, complete, content, demo_settings, request, serving

from tokalign.serve.admission import Refusal, require_origin
from tokalign.serve.server import Server

USER = "Opisz krótko Wisłę."
SOURCES = {"tokalign": {"sources": True}}
LONG = {"max_tokens": 60, "logit_bias": {"2": -100, "4": -100}}
"""Options with which no stop id ends an answer."""
KEY = "klucz"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(num_draft_tokens=3)) as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with serving(demo_settings(draft_model=None, api_keys=(KEY,))) as running:
        yield running


def test_it_may_run_its_own_script_and_style_and_ask_its_own_server(server: Server) -> None:
    page = request(server, "GET", "/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    rules = dict(rule.split(" ", 1) for rule in page.headers["Content-Security-Policy"].split("; "))
    for name in ("script", "style"):
        (own,) = re.findall(f"<{name}>(.*?)</{name}>", page.text, re.DOTALL)
        digest = b64encode(sha256(own.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page.text) == []
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write", page.text)
    assert len(page.text.splitlines()) < 600


def test_it_is_kept_by_browsers_until_it_changes(server: Server) -> None:
    page = request(server, "GET", "/")
    head = request(server, "HEAD", "/")
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Length"] == page.headers["Content-Length"]
    tag = page.headers["ETag"]
    again = request(server, "GET", "/", headers={"If-None-Match": f"W/{tag}"})
    assert (again.status, again.text, again.headers["ETag"]) == (304, "", tag)
    assert request(server, "GET", "/", headers={"If-None-Match": '"other"'}).status == 200
    assert request(server, "HEAD", "/nowhere").status == 404


def test_it_needs_no_key_but_its_requests_do(locked: Server) -> None:
    assert request(locked, "GET", "/").status == 200
    assert request(locked, "GET", "/v1/models").status == 401


@pytest.mark.parametrize(
    ("origin", "host", "has_keys", "allowed"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", False, True),
        ("http://[::1]:8080", "[::1]:8080", False, True),
        ("http://localhost:8080", "localhost:8080", False, True),
        ("http://192.168.1.9:8080", "192.168.1.9:8080", False, True),
        ("http://localhost:3000", "localhost:8080", False, False),
        ("http://192.168.1.8:8080", "192.168.1.9:8080", True, False),
        ("http://evil.example:8080", "evil.example:8080", False, False),  # DNS rebinding
        ("https://chat.example", "chat.example", True, True),
        ("null", "", True, False),
        ("file://", "", True, False),
        ("http://[", "[", True, False),
    ],
)
def test_a_page_may_ask_the_server_it_came_from(
    origin: str, host: str, has_keys: bool, allowed: bool
) -> None:
    headers = {"Origin": origin, "Host": host}
    if allowed:
        require_origin(headers, (), has_keys=has_keys)
    else:
        with pytest.raises(Refusal, match="--allowed-origins"):
            require_origin(headers, (), has_keys=has_keys)


def test_every_token_says_who_proposed_it(server: Server) -> None:
    whole = chat(server, USER, **LONG)
    told = chat(server, USER, **LONG, **SOURCES)
    assert content(told) == content(whole)
    assert "tokalign" not in whole.text
    tokens = told.json["choices"][0]["tokalign"]["tokens"]
    usage = told.json["usage"]["completion_tokens_details"]
    assert "".join(token["text"] for token in tokens) == content(told)
    assert len(tokens) == told.json["usage"]["completion_tokens"] == 60
    accepted = [token for token in tokens if token["outcome"] == "accepted"]
    assert len(accepted) == usage["accepted_prediction_tokens"] > 0
    assert {token["source"] for token in tokens if token not in accepted} == {"target"}
    assert "target" not in {token["source"] for token in accepted}
    passes = [token["pass"] for token in tokens]
    assert passes == sorted(passes)
    assert set(passes) == set(range(1, max(passes) + 1))
    own = len(tokens) - len(accepted)
    assert own in (max(passes), max(passes) - 1)  # one a pass, but max_tokens may cut the last


@pytest.mark.parametrize("more", [{}, {"num_draft_tokens": 0}, {"logprobs": True}])
def test_a_stream_says_it_with_every_part(server: Server, more: dict[str, object]) -> None:
    events = chat(server, USER, stream=True, **LONG, **SOURCES, **more).events
    for event in events:
        choice = event["choices"][0]
        text = "".join(token["text"] for token in choice["tokalign"]["tokens"])
        assert text == choice["delta"].get("content", "")
        if "logprobs" in more:
            assert len(choice["logprobs"]["content"]) == len(choice["tokalign"]["tokens"])
    assert "tokalign" not in chat(server, USER, stream=True).text
    assert complete(server, USER, **SOURCES).json["choices"][0]["tokalign"]["tokens"]


@pytest.mark.parametrize("wrong", [True, {"sources": 1}])
def test_another_value_is_refused(server: Server, wrong: object) -> None:
    assert chat(server, USER, tokalign=wrong).status == 400
