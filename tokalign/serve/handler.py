"""One HTTP request: paths, statuses, streams.

Every API has a `Rendering`, which translates its requests and writes its answers. What is between,
from the fields to the steps of an answer, is the same for all.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST

from tokalign.serve import body
from tokalign.serve.admission import (
    Refusal,
    RequestStream,
    authorized_key,
    discard_body,
    is_loopback,
    read_body,
    refusal_of,
    require_allowed,
)
from tokalign.serve.answer import Choice, Rendering, Steps, Usage
from tokalign.serve.completions import Chats, Completions
from tokalign.serve.job import Asked
from tokalign.serve.messages import Messages
from tokalign.serve.responses import Responses
from tokalign.serve.scheduler import Scheduler
from tokalign.serve.structured import grammar_of
from tokalign.serve.tools import tool_choice

_EMBEDDINGS, _COUNT_TOKENS = "/v1/embeddings", "/v1/messages/count_tokens"
_APIS: Mapping[str, type[Rendering]] = {
    "/v1/chat/completions": Chats,
    "/chat/completions": Chats,
    "/v1/completions": Completions,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
    _COUNT_TOKENS: Messages,
}
_COUNTED = (*_APIS, _EMBEDDINGS, "/", "/v1/models", "/health", "/metrics")
"""Paths that `/metrics` names."""

_CONTROLS = {i: f"\\x{i:02x}" for i in (*range(0x20), *range(0x7F, 0xA0))}

_LOG = logging.getLogger(__name__)


class Handler(BaseHTTPRequestHandler):
    """A request of one client. HTTP/1.0: the connection is closed after the answer."""

    server_version, sys_version = "tokalign", ""

    headers: Any
    rfile: Any
    path = ""  # of a request that cannot be read

    _rendering: Rendering | None = None  # of the request, once it is read
    _streams = False  # whether an event stream has begun
    _status = 0  # what was answered

    def __init__(self, scheduler: Scheduler, *given: Any) -> None:
        self.scheduler, self.settings = scheduler, scheduler.settings
        super().__init__(*given)

    def setup(self) -> None:
        """Have the whole request arrive within its time, not only each part of it."""
        super().setup()
        seconds = self.settings.read_timeout
        self.connection.settimeout(seconds)
        self.rfile.close()
        self.rfile = BufferedReader(RequestStream(self.connection, seconds))

    # -- routes ------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET  # noqa: N815  # `_write` leaves the body out

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_OPTIONS(self) -> None:
        """A browser asks whether a page may send requests."""
        self._answer(self._preflight)

    def _get(self) -> None:
        path = unquote(self._plain_path)
        if path in ("/", "/health"):  # the page holds nothing: it asks for the key itself
            self._require_allowed()
        else:
            self._authorize()
        if path == "/":
            page, headers = _read_page()
            if headers["ETag"] in self.headers.get("If-None-Match", ""):
                self._write(b"", headers, 304)
            else:
                self._write(page, headers)
        elif path == "/health":
            said, status = ("ok", 200) if self.scheduler.is_healthy else ("unavailable", 503)
            self._write_json({"status": said}, status)
        elif path == "/metrics":
            self._write(self.scheduler.metrics.text(), {"Content-Type": CONTENT_TYPE_LATEST})
        elif path in ("/v1/models", "/v1/models/"):
            models = self.scheduler.model_provider.model_list()
            self._write_json({"object": "list", "data": models, "has_more": False})
        elif path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            for model in self.scheduler.model_provider.model_list():
                if model["id"] == name:
                    self._write_json(model)
                    return
            raise Refusal(404, f"there is no model {name!r}", code="model_not_found")
        else:
            self._find_nothing(path)

    def _find_nothing(self, path: str) -> NoReturn:
        raise Refusal(404, f"there is nothing at {path or self.path}", code="not_found")

    def _post(self) -> None:
        try:
            key = self._authorize()
        except Refusal:
            discard_body(self.rfile, self.headers)
            raise
        data = read_body(self.rfile, self.headers, self.settings)
        path = self._plain_path
        if path == _EMBEDDINGS:
            raise Refusal(
                501,
                "embeddings are not served: tokalign decodes text, it embeds none; ask a "
                "server that is made for them",
                code="unsupported",
            )
        if path not in _APIS:
            self._find_nothing(path)
        api, given = _APIS[path], body.read_json(data)
        translated = api.translate(given)
        prediction, grammar = body.predicted(translated), grammar_of(translated)
        called = tool_choice(translated)
        checked = body.check(translated, chat=api.is_chat)
        asked = Asked(
            **body.arguments(checked, self.settings),
            request_type="chat" if api.is_chat else "text",
            prompt="",
            messages=checked.get("messages", []),
            tools=checked.get("tools") or None,
            role_mapping=checked.get("role_mapping"),
            api_key=key,
            prediction=prediction,
            grammar=grammar,
            tool_choice=called if api.is_chat else None,
            several_calls=checked.get("parallel_tool_calls") is True,
            suffix="" if api.is_chat else checked.get("suffix", ""),
            only_counts=path == _COUNT_TOKENS,
            connection=self.connection,
        )
        self.scheduler.model_provider.require_served(asked.model)
        self._rendering = api(given, checked)
        requests = [
            replace(asked, prompt=prompt, seed=None if asked.seed is None else asked.seed + index)
            for prompt in checked.get("prompts", [""])
            for index in range(checked["n"])
        ]
        self._reply(self._rendering, requests)

    def _reply(self, rendering: Rendering, requests: Sequence[Asked]) -> None:
        """Have requests answered that are one to the client, and write their answers."""
        choices: list[Choice] = []

        def tell(read: int, total: int) -> None:
            if self._streams:
                self._send(rendering.keep_alive(read, total))

        def steps() -> Steps:
            """Choice after choice: the later ones are decoded meanwhile."""
            for choice in choices:
                for step in choice.steps():
                    yield choice, step
                yield choice, None

        try:
            for index, asked in enumerate(requests):
                answer, responses = self.scheduler.submit(asked, tell)
                is_first = index % rendering.body["n"] == 0
                choices.append(Choice(index, asked, answer, responses, counts_prompt=is_first))
            if choices[0].asked.only_counts:
                self._write_json({"input_tokens": Usage.of(choices).prompt})
            elif rendering.body["stream"]:
                self._streams = True
                self._begin({"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
                for data in rendering.stream(choices, steps()):
                    self._send(data)
            else:
                for _ in steps():
                    pass
                self._write_json(rendering.whole(choices))
        finally:
            for choice in choices:
                choice.answer.is_wanted = False

    def _send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def _authorize(self) -> str:
        """The scope of the request; see `authorized_key`. Raises: Refusal."""
        self._require_allowed()
        return authorized_key(self.headers, self.settings.api_keys)

    def _require_allowed(self) -> None:
        """Raises: Refusal for another host's name or a web page that may not ask."""
        is_local = is_loopback(self.connection.getsockname()[0])
        require_allowed(self.headers, self.settings, is_local=is_local)

    @property
    def _plain_path(self) -> str:
        """The path that is asked for, without a query; empty for an address that has none."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def _preflight(self) -> None:
        self._require_allowed()
        self._begin({}, 204)

    @property
    def _cors_headers(self) -> dict[str, str]:
        """The headers that tell a browser what a page of the request's origin may do."""
        headers = getattr(self, "headers", None)  # there are none if the request is broken
        origin = None if headers is None else headers.get("Origin")
        if origin is None:
            return {}
        allowed = {"Access-Control-Allow-Methods": "*", "Access-Control-Allow-Headers": "*"}
        if "*" in self.settings.allowed_origins:
            allowed["Access-Control-Allow-Origin"] = "*"
        elif origin in self.settings.allowed_origins:
            allowed |= {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        return allowed

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self, route: Callable[[], None]) -> None:
        """Run a route; whatever goes wrong is written as an error in the API's own form."""
        try:
            try:
                route()
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status >= 500 and error is not refusal:
                    _LOG.error("%s", refusal, exc_info=error)
                self._refuse(refusal)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # nobody is there to read an answer
        path = self._plain_path
        self.scheduler.metrics.requests.labels(
            path if path in _COUNTED else "other", str(self._status)
        ).inc()

    def _refuse(self, refusal: Refusal) -> None:
        if self._streams and self._rendering is not None:
            self._status = refusal.status
            self._send(self._rendering.fail(refusal))
        else:
            api = _APIS.get(self._plain_path, Chats)
            self._write_json(api.error(refusal), refusal.status, refusal.headers)

    def _write_json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        self._write(json.dumps(value).encode(), headers, status)

    def _begin(self, headers: Mapping[str, str], status: int = 200) -> None:
        """Send the head of an answer."""
        self._status = status
        self.send_response(status)
        for name, value in {**headers, **self._cors_headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, data: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        self._begin({"Content-Length": str(len(data)), **headers}, status)
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What `http.server` refuses by itself, such as an unknown method."""
        self._refuse(Refusal(int(code), message or "the request cannot be read"))

    def log_message(self, format: str, *args: Any) -> None:
        """Log a line; what a client sends cannot forge another one."""
        line = (format % args).translate(_CONTROLS)
        _LOG.info("%s %s", self.address_string(), line)


@cache
def _read_page() -> tuple[bytes, dict[str, str]]:
    """The chat page and headers by which it runs its own script and asks its own server only."""
    data = Path(__file__).with_name("page.html").read_bytes()
    rules = (
        "default-src 'none'",
        f"script-src {_hash_of(data, 'script')}",
        f"style-src {_hash_of(data, 'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Texts of models become text nodes, never markup.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(rules),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # kept, but asked for by its tag every time
        "ETag": f'"{sha256(data).hexdigest()[:32]}"',
    }
    return data, headers


def _hash_of(page: bytes, element: str) -> str:
    """The only element of this name as a policy names it: by the hash of its content."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>".encode(), page, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content).digest()).decode()}'"
