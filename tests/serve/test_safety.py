"""Who may ask for what, and what stays apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from socket import gethostname
from typing import Any
from weakref import ref

import pytest
from places import DEMO
from served import LOOP, chat, complete, demo_settings, request, serving

from tokalign.api.assemble import load_decoder
from tokalign.runtime import remembered
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.options import DraftingOptions
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal, require_allowed
from tokalign.serve.server import Server

PROMPT = "Wisła jest najdłuższą rzeką w Polsce i płynie"
BODY = {"prompt": PROMPT, "max_tokens": 40, **LOOP}
PATH = "/v1/completions"


KEYS = ("klucz-a", "klucz-b", "klucz-c", "klucz-d", "klucz-ż")


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """Each test has keys of its own, so that nothing is kept for them before it."""
    settings = demo_settings(api_keys=KEYS, num_draft_tokens=4)
    with serving(settings) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", PATH])
@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer("klucz"), {"Authorization": "Basic klucz-a"}]
)
def test_a_key_is_needed(locked: Server, path: str, headers: dict[str, str]) -> None:
    method, body = ("POST", BODY) if path == PATH else ("GET", None)
    reply = request(locked, method, path, body, headers)
    assert reply.status == 401
    assert reply.json["error"]["type"] == "authentication_error"
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    own: dict[str, Any] = {"Authorization": "Bearer klucz-ż".encode()}
    assert request(locked, method, path, body, own).status == 200
    for needs_none in ("/health", "/"):
        assert request(locked, "GET", needs_none).status == 200


@pytest.mark.parametrize("key", [b"Bearer klucz-\xc5\xbc", b"bearer  klucz-\xc5\xbc "])
def test_a_key_may_have_any_letters_and_its_scheme_any_case(locked: Server, key: bytes) -> None:
    headers: dict[str, Any] = {"Authorization": key}
    assert request(locked, "GET", "/v1/models", None, headers).status == 200
    assert request(locked, "GET", "/v1/models", None, bearer("klucz-z")).status == 401


def test_a_request_without_the_key_is_refused_whatever_its_body(locked: Server) -> None:
    """Its body is neither kept nor read for faults."""
    assert request(locked, "POST", PATH, b"x" * (9 << 20)).status == 401
    assert request(locked, "POST", PATH, b"{").status == 401


def test_nothing_crosses_api_keys(locked: Server) -> None:
    """Neither a kept context nor an earlier output serves the owner of another key."""

    def ask(key: str) -> tuple[str, dict[str, Any]]:
        reply = request(locked, "POST", PATH, BODY, bearer(key))
        return reply.json["choices"][0]["text"], reply.json["usage"]

    def figures(usage: dict[str, Any]) -> tuple[int, int]:
        accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], accepted

    text, _ = ask("klucz-a")
    again, usage_of_again = ask("klucz-a")
    proposed = proposed_from_answers(locked)
    assert proposed > 0
    other, usage_of_other = ask("klucz-b")
    assert text == again == other
    assert figures(usage_of_again)[0] > 5
    assert figures(usage_of_other)[0] == 0
    assert proposed_from_answers(locked) == proposed


def proposed_from_answers(server: Server) -> float:
    text = request(server, "GET", "/metrics", headers=bearer("klucz-a")).text
    begin = 'tokalign_proposed_tokens_total{source="session"}'
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(begin))


def test_what_the_target_found_likely_is_kept_for_its_api_key(
    locked: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _stores_used(monkeypatch)
    for key in ("klucz-c", "klucz-c", "klucz-d"):
        assert request(locked, "POST", PATH, BODY, bearer(key)).status == 200
    first, again, other = used
    assert first is again is not other
    assert len(first) > 0


def _stores_used(monkeypatch: pytest.MonkeyPatch) -> list[LogitStore]:
    """Gets the logit store of every request from here on."""
    used: list[LogitStore] = []
    for_request = Drafting.for_request

    def spy(*given: Any) -> Drafting:
        drafting = for_request(*given)
        assert drafting.logits is not None
        used.append(drafting.logits)
        return drafting

    monkeypatch.setattr(Drafting, "for_request", spy)
    return used


def test_what_is_remembered_serves_every_key_and_the_next_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is shared because it was asked for; earlier answers are not, as without it."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    used = _stores_used(monkeypatch)
    drafting = DraftingOptions(remember=True, num_draft_tokens=4)
    settings = demo_settings(api_keys=KEYS, draft_model=None, drafting=drafting)
    with serving(settings) as server:
        texts = [request(server, "POST", PATH, BODY, bearer(key)).text for key in KEYS[:2]]
        assert len(server.scheduler._kept._outputs._stores) == 2
    assert used[0] is used[1]
    remembered._open.clear()  # as in a new process
    with serving(settings) as server:
        texts.append(request(server, "POST", PATH, BODY, bearer(KEYS[2])).text)
    assert used[2] is not used[0]
    assert set(used[0].rows.keys) <= set(used[2].rows.keys)
    assert len({json.loads(text)["choices"][0]["text"] for text in texts}) == 1


def test_without_keys_everybody_shares_one_store(alone: Server) -> None:
    cached = []
    for headers in ({}, bearer("jeden"), bearer("dwa")):
        usage = request(alone, "POST", PATH, BODY, headers).json["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert min(cached[1:]) > 5
    assert len(alone.scheduler._kept._outputs._stores) == 1


def test_pages_of_other_origins_may_not_ask(alone: Server) -> None:
    assert alone.is_local
    for method, path, body in (
        ("POST", PATH, BODY),
        ("OPTIONS", PATH, None),
        ("GET", "/v1/models", None),
    ):
        reply = request(alone, method, path, body, {"Origin": "https://example.com"})
        assert reply.status == 403
        assert "example.com" in reply.json["error"]["message"]


@pytest.mark.parametrize("allowed", [("https://example.com",), ("*",)])
def test_an_allowed_origin_is_told_so(allowed: tuple[str, ...]) -> None:
    origin = {"Origin": "https://example.com"}
    with serving(demo_settings(draft_model=None, allowed_origins=allowed)) as server:
        asks = {**origin, "Access-Control-Request-Method": "POST"}
        asks["Access-Control-Request-Private-Network"] = "true"  # Chrome's, to a local server
        preflight = request(server, "OPTIONS", PATH, None, asks)
        assert preflight.status == 200
        assert preflight.headers["Access-Control-Allow-Private-Network"] == "true"
        for reply in (
            preflight,
            request(server, "POST", PATH, {**BODY, "max_tokens": 1}, origin),
            request(server, "POST", PATH, b"{", origin),
            request(server, "GET", "/v1/models", None, origin),
        ):
            assert reply.headers["Access-Control-Allow-Origin"] == allowed[0]
        other = request(server, "GET", "/health", None, {"Origin": "https://example.org"})
        assert "Access-Control-Allow-Origin" not in request(server, "GET", "/health").headers
        assert other.headers.get("Access-Control-Allow-Origin") == ("*" if "*" in allowed else None)


OWN = f"{gethostname()}:8080"


@pytest.mark.parametrize(
    ("is_local", "origin", "host", "has_keys", "allowed"),
    [
        *((True, None, host, False, True) for host in ("localhost", "localhost:8080", OWN)),
        *((True, None, host, False, True) for host in ("127.0.0.1:9", "[::1]:8080")),
        (True, None, "rebound.example.com", False, False),
        (True, None, "127.0.0.1.example.com:8080", False, False),
        (True, None, "rebound.example.com", True, True),
        (False, "http://127.0.0.1:8080", "127.0.0.1:8080", False, True),
        (False, "http://[::1]:8080", "[::1]:8080", False, True),
        (False, "http://localhost:8080", "localhost:8080", False, True),
        (False, "http://192.168.1.9:8080", "192.168.1.9:8080", False, True),
        (False, f"http://{OWN}", OWN, False, True),
        (False, "http://localhost:3000", "localhost:8080", False, False),
        (False, "http://192.168.1.8:8080", "192.168.1.9:8080", True, False),
        (False, "http://evil.example:8080", "evil.example:8080", False, False),  # DNS rebinding
        (False, "https://chat.example", "chat.example", True, True),
        *((False, origin, "", True, False) for origin in ("null", "file://")),
        (False, "http://[", "[", True, False),
    ],
)
def test_a_page_may_ask_the_server_it_came_from_and_a_local_one_has_local_names(
    is_local: bool, origin: str | None, host: str, has_keys: bool, allowed: bool
) -> None:
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    settings = Settings(api_keys=("key",) if has_keys else ())
    told = "--allowed-origins" if origin else "--allowed-hosts"
    with nullcontext() if allowed else pytest.raises(Refusal, match=told):
        require_allowed(headers, settings, is_local=is_local)


@pytest.mark.parametrize("allowed", ["host.docker.internal", "*"])
def test_a_host_may_be_let_in_by_name(allowed: str) -> None:
    headers = {"Host": "host.docker.internal:8080"}
    with pytest.raises(Refusal, match=r"--allowed-hosts host\.docker\.internal"):
        require_allowed(headers, Settings(), is_local=True)
    require_allowed(headers, Settings(allowed_hosts=(allowed,)), is_local=True)
    own = {**headers, "Origin": "http://host.docker.internal:8080"}
    require_allowed(own, Settings(allowed_hosts=(allowed,)), is_local=True)


def test_models_are_switched_only_if_that_was_allowed(
    alone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(DEMO / "draft")
    assert chat(alone, "Wisła", model=other).status == 404
    with serving(demo_settings(draft_model=None, allow_model_switching=True)) as server:
        own = complete(server, PROMPT)
        before = ref(server.scheduler.models.loaded.decoder.target.model)

        def load(*given: Any, **named: Any) -> Decoder:
            assert before() is None, "two models at a time would need the memory of both"
            return load_decoder(*given, **named)

        monkeypatch.setattr("tokalign.serve.models.load_decoder", load)
        switched = complete(server, PROMPT, model=other)
        assert switched.status == 200
        assert switched.json["choices"] != own.json["choices"]
        assert complete(server, PROMPT, model="/nowhere").status == 404
        for name in ("x" * 20_000, "/" + "x" * 20_000):  # longer than a path may be
            refused = complete(server, PROMPT, model=name)
            assert refused.status in (400, 404)
            assert len(refused.text) < 1000
        assert complete(server, PROMPT).json["choices"] == own.json["choices"]
        kept = server.scheduler.models.loaded
        assert complete(server, PROMPT, adapters="/nowhere").status == 404
        assert server.scheduler.models.loaded is kept
        drafted = complete(server, PROMPT, draft_model=other, num_draft_tokens=2)
        assert drafted.json["choices"] == own.json["choices"]
        assert 'source="draft"' in request(server, "GET", "/metrics").text


def test_a_line_of_the_log_cannot_be_forged(
    alone: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        request(alone, "GET", "/%0d%0aforged", headers={"X": "y"})
    assert all("\n" not in record.getMessage() for record in caplog.records)
