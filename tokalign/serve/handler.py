"""One HTTP request: mlx-lm's handler with paths, statuses, limits and usage of our own.

mlx-lm's handler reports every error by setting a status and then writing text. Here the status is
intercepted (`_set_completion_headers`) and raised as a `Refusal`, which `_answer` writes as
OpenAI's clients expect it.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable
from io import BufferedReader, BytesIO
from itertools import accumulate
from time import monotonic
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from mlx_lm.server import APIHandler, ModelDescription, Response

from tokalign.arguments import shown
from tokalign.runtime.text import token_bytes
from tokalign.serve import body, metrics
from tokalign.serve.admission import (
    Refusal,
    RequestStream,
    authorized_key,
    discard_body,
    is_loopback,
    read_body,
    refusal_of,
    require_local_host,
    require_origin,
)
from tokalign.serve.job import NO_TOKEN, Asked, Emitted
from tokalign.serve.page import read_page
from tokalign.serve.scheduler import Scheduler
from tokalign.serve.structured import grammar_of

_CHATS = ("/v1/chat/completions", "/chat/completions")
_COMPLETIONS = "/v1/completions"
_HTML = "text/html; charset=utf-8"
_OPTIONAL = ("num_draft_tokens",)
_MOST = 1 << 62
"""Larger integers do not fit the arrays that they end up in."""

_UNLIKELY = -9999.0
"""Sent for a log-probability that is no finite number, as by OpenAI: JSON has no other numbers."""

_CONTROLS = {i: f"\\x{i:02x}" for i in (*range(0x20), *range(0x7F, 0xA0))}

_LOG = logging.getLogger(__name__)


class Handler(APIHandler):  # type: ignore[misc]
    """A request of one client. HTTP/1.0: the connection is closed after the answer."""

    server_version, sys_version = "tokalign", ""

    path: str
    rfile: BinaryIO
    requested_draft_model: str | None

    _asked: Asked | None = None
    _streams = False  # whether an event stream has begun
    _status = 0  # what was answered
    _text_length = 0  # characters of the tokens whose log-probabilities were sent

    def __init__(self, scheduler: Scheduler, *given: Any, **named: Any) -> None:
        self.scheduler, self.settings = scheduler, scheduler.settings
        self.timeout = self.settings.read_timeout
        super().__init__(scheduler, *given, **named)

    def setup(self) -> None:
        """Have the whole request arrive within its time, not only each part of it."""
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(RequestStream(self.connection, self.timeout))

    # -- routes ------------------------------------------------------------------------------------

    def do_GET(self) -> None:  # noqa: N802
        """The page, models, health, metrics."""
        self._answer(self._get)

    def do_HEAD(self) -> None:  # noqa: N802
        """The headers of a GET."""
        self._answer(self._get)

    def do_POST(self) -> None:  # noqa: N802
        """Chats and completions."""
        self._answer(self._post)

    def do_OPTIONS(self) -> None:  # noqa: N802
        """A browser asks whether a page may send requests."""
        self._answer(self._preflight)

    def _get(self) -> None:
        path = unquote(self._plain_path)
        if path in ("/", "/health"):  # the page holds nothing: it asks for the key itself
            self._require_allowed()
        else:
            self._authorize()
        if path == "/":
            self._write_page()
        elif path == "/health":
            healthy = self.scheduler.is_healthy
            self._write_json(
                {"status": "ok" if healthy else "unavailable"}, status=200 if healthy else 503
            )
        elif path == "/metrics":
            self._write(self.scheduler.metrics.text(), metrics.CONTENT_TYPE)
        elif path.rstrip("/") == "/v1/models":
            self._write_json({"object": "list", "data": self._models()})
        elif path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            found = [model for model in self._models() if model["id"] == name]
            if not found:
                raise Refusal(404, f"there is no model {name!r}", code="model_not_found")
            self._write_json(found[0])
        else:
            raise Refusal(404, f"there is nothing at {path or self.path}", code="not_found")

    def _post(self) -> None:
        try:
            key = self._authorize()
        except Refusal:
            discard_body(self.rfile, self.headers)
            raise
        data = read_body(self.rfile, self.headers, self.settings)
        arrived = monotonic()
        path = self._plain_path
        if path not in (*_CHATS, _COMPLETIONS):
            raise Refusal(404, f"there is nothing at {path or self.path}", code="not_found")
        given = body.read_json(data)
        prediction, grammar = body.predicted(given), grammar_of(given)
        tool_choice = body.tool_choice(given)
        checked = body.check(given, chat=path in _CHATS)
        for name in ("xtc_probability", "xtc_threshold"):  # mlx-lm's server has no flags for these
            checked.setdefault(name, getattr(self.settings, name))
        self._asked = Asked(
            "chat" if path in _CHATS else "text",
            "" if path in _CHATS else checked["prompt"],
            checked["messages"] if path in _CHATS else [],
            checked.get("tools") or None,
            checked.get("role_mapping"),
            api_key=key,
            prediction=prediction,
            grammar=grammar,
            tool_choice=tool_choice if path in _CHATS else None,
            several_calls=given.get("parallel_tool_calls") is True,
            tells_sources=body.tells_sources(given),
            connection=self.connection,
            arrived=arrived,
        )
        # mlx-lm's handler reads the request itself: it gets the one that was checked.
        data = json.dumps(checked).encode()
        self.path, self.rfile = path, BytesIO(data)
        self.headers.replace_header("Content-Length", str(len(data)))
        super().do_POST()

    def _authorize(self) -> str:
        """The scope of the request; see `authorized_key`. Raises: Refusal."""
        self._require_allowed()
        return authorized_key(self.headers, self.settings.api_keys)

    def _require_allowed(self) -> None:
        """Raises: Refusal for another host's name or a web page that may not ask."""
        if not self.settings.api_keys and is_loopback(self.connection.getsockname()[0]):
            require_local_host(self.headers)
        require_origin(
            self.headers, self.settings.allowed_origins, has_keys=bool(self.settings.api_keys)
        )

    @property
    def _plain_path(self) -> str:
        """The path that is asked for, without a query; empty for an address that has none."""
        try:
            return urlsplit(self.path).path
        except ValueError:
            return ""

    def _preflight(self) -> None:
        self._require_allowed()
        self.send_response(204)
        self._set_cors_headers()
        self.end_headers()

    # -- what mlx-lm's handler calls ---------------------------------------------------------------

    def handle_chat_completions(self) -> Asked:
        """The request, of which no image is fetched. It was checked in `body.py`."""
        assert self._asked is not None
        self.request_id = f"chatcmpl-{uuid4()}"
        self.object_type = "chat.completion.chunk" if self.stream else "chat.completion"
        return self._asked

    def handle_text_completions(self) -> Asked:
        """The same, for a completion."""
        assert self._asked is not None
        self.request_id, self.object_type = f"cmpl-{uuid4()}", "text_completion"
        return self._asked

    def validate_model_parameters(self) -> None:
        """Raises: ValueError for a wrong type or range; Refusal for a model that is not served."""
        super().validate_model_parameters()
        for bias in (self.logit_bias or {}).values():
            if not -_MOST <= bias <= _MOST:  # NaN neither
                raise ValueError(f"logit_bias must have smaller numbers, not {shown(bias)}")
        if not self.requested_draft_model:
            self.requested_draft_model = "default_model"
        asked = ModelDescription(
            model=self.requested_model, draft=self.requested_draft_model, adapter=self.adapter
        )
        self.scheduler.model_provider.require_served(asked)

    def _validate(self, name: str, expected_type: Any, *given: Any, **named: Any) -> None:
        """As mlx-lm's, but truth values are no numbers, and numbers have to be finite."""
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if isinstance(value, bool) and expected_type is not bool:
            raise ValueError(f"{name} must be a number, not {shown(value)}")
        if isinstance(value, int) and expected_type is float:
            setattr(self, name, float(value))
        if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
            raise ValueError(f"{name} must be a smaller number, not {shown(value)}")
        super()._validate(name, expected_type, *given, **named)

    def generate_response(
        self, text: str, finish_reason: str | None, *counts: Any, **parts: Any
    ) -> dict[str, Any]:
        """As mlx-lm's, with log-probabilities and usage in OpenAI's shape, streaming or not."""
        for name in ("token_logprobs", "top_tokens", "tokens"):
            parts.pop(name, None)
        response: dict[str, Any] = super().generate_response(text, finish_reason, *counts, **parts)
        assert self._asked is not None
        shown, self._asked.shown = self._asked.shown, []
        if self.logprobs or self.top_logprobs > 0:
            response["choices"][0]["logprobs"] = self._logprobs(shown)
        if self._asked.tells_sources:
            response["choices"][0]["tokalign"] = self._origins(shown)
        if "usage" in response:
            self._complete(response["usage"])
        return response

    def completion_usage_response(self, *counts: Any) -> dict[str, Any]:
        """As mlx-lm's, with the counts of `_complete`, named like the stream's other parts."""
        response: dict[str, Any] = super().completion_usage_response(*counts)
        response["object"] = self.object_type
        self._complete(response["usage"])
        return response

    def _set_completion_headers(self, status_code: int = 200) -> None:
        """Raises: Refusal in the place of mlx-lm's own error texts."""
        if status_code >= 400:
            error = sys.exc_info()[1]
            if error is None:
                raise Refusal(status_code, "the request cannot be read")
            # mlx-lm answers 404 to whatever goes wrong before an answer begins.
            raise refusal_of(error, status=400 if status_code == 400 else 500) from error
        super()._set_completion_headers(status_code)

    def _set_stream_headers(self, status_code: int = 200) -> None:
        self._streams = True
        super()._set_stream_headers(status_code)

    def _set_cors_headers(self) -> None:
        headers = getattr(self, "headers", None)  # there are none if the request is broken
        if headers is not None and headers.get("Origin") is not None:
            super()._set_cors_headers()

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self, route: Callable[[], None]) -> None:
        """Run a route; whatever goes wrong is written as an error in OpenAI's shape."""
        try:
            try:
                route()
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                refusal = refusal_of(error)
                if refusal.status >= 500:
                    _LOG.error("%s", refusal, exc_info=None if error is refusal else error)
                self._refuse(refusal)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # nobody is there to read an answer
        path = self._plain_path
        known = (*_CHATS, _COMPLETIONS, "/", "/v1/models", "/health", "/metrics")
        self.scheduler.metrics.requests.labels(
            path if path in known else "other", str(self._status)
        ).inc()

    def _refuse(self, refusal: Refusal) -> None:
        if self._streams:
            self._status = refusal.status
            self.wfile.write(f"data: {json.dumps(refusal.to_json())}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            self.wfile.flush()
        else:
            self._headers_buffer: list[bytes] = []  # of a success that did not come about
            self._write_json(refusal.to_json(), status=refusal.status, headers=refusal.headers)

    def _write_json(
        self, value: Any, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._write(json.dumps(value).encode(), "application/json", status, headers)

    def _write(
        self, data: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self._set_cors_headers()
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def _write_page(self) -> None:
        page = read_page()
        if page.tag in self.headers.get("If-None-Match", ""):
            self._write(b"", _HTML, 304, page.headers)
        else:
            self._write(page.data, _HTML, 200, page.headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What `http.server` refuses by itself, such as an unknown method."""
        self._refuse(Refusal(int(code), message or "the request cannot be read"))

    def send_response(self, code: int, message: str | None = None) -> None:
        """Note what is answered."""
        self._status = code
        super().send_response(code, message)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a line; what a client sends cannot forge another one."""
        line = (format % args).translate(_CONTROLS)
        _LOG.info("%s %s", self.address_string(), line)

    # -- parts of an answer ------------------------------------------------------------------------

    def _models(self) -> list[dict[str, Any]]:
        listed = self.scheduler.model_provider.model_list()
        return [{**model, "created": self.created} for model in listed]

    def _complete(self, usage: dict[str, Any]) -> None:
        """OpenAI's counts: kept prompt tokens, and drafted tokens by what became of them."""
        assert self._asked is not None
        answer = self._asked.answer
        assert answer is not None
        usage["completion_tokens"] = answer.completion_tokens
        usage["total_tokens"] = usage["prompt_tokens"] + answer.completion_tokens
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": answer.accepted,
            "rejected_prediction_tokens": answer.rejected,
        }

    def _origins(self, shown: list[Emitted]) -> dict[str, Any]:
        """Who proposed each token since the last part of the answer; see `docs/serve.md`."""
        assert self._asked is not None
        assert self._asked.answer is not None
        plain = self._asked.answer.plain_seconds
        return {
            "tokens": [
                {"text": one.text, "source": one.source, "outcome": one.outcome, "pass": one.number}
                for one in shown
                if one.token != NO_TOKEN
            ],
            "plain_tokens_per_second": None if plain is None else round(1 / plain, 3),
        }

    def _logprobs(self, shown: list[Emitted]) -> dict[str, Any]:
        """Log-probabilities of the tokens since the last part of the answer."""
        content = [self._token_logprobs(one) for one in shown if one.token != NO_TOKEN]
        if self.object_type != "text_completion":
            return {"content": content}
        lengths = [len(one["token"]) for one in content]
        *offsets, self._text_length = accumulate(lengths, initial=self._text_length)
        return {
            "content": content,
            "text_offset": offsets,
            "tokens": [one["token"] for one in content],
            "token_logprobs": [one["logprob"] for one in content],
            "top_logprobs": [
                {other["token"]: other["logprob"] for other in one["top_logprobs"]}
                for one in content
            ],
        }

    def _token_logprobs(self, response: Response) -> dict[str, Any]:
        top = sorted(response.top_tokens, key=lambda one: -float(one["logprob"]))
        return {
            **self._token(response.token, response.logprob),
            "top_logprobs": [self._token(one["id"], one["logprob"]) for one in top],
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        vocabulary = self.scheduler.model_provider.decoder.target.tokenizer.vocabulary
        data = token_bytes(vocabulary.tokens, token)
        data = data or vocabulary.specials.get(token, "").encode()
        text = data.decode("utf-8", "replace")
        if not math.isfinite(logprob):
            logprob = _UNLIKELY
        return {"id": token, "token": text, "logprob": logprob, "bytes": list(data)}
