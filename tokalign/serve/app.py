"""HTTP: paths and statuses, as a Starlette application.

Every API has a `Rendering`, which reads its requests and writes its answers. What is in between is
the same for all, see `streams.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from time import monotonic

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokalign.errors import shown
from tokalign.serve.admission import Refusal, authorized_key, refusal_of, require_allowed
from tokalign.serve.answer import Rendering, Usage
from tokalign.serve.body import Common
from tokalign.serve.completions import Chats, Completions
from tokalign.serve.json_body import openapi, read
from tokalign.serve.messages import Messages
from tokalign.serve.page import read_page
from tokalign.serve.page.markdown import blocks
from tokalign.serve.request import DEFAULT, ApiRequest
from tokalign.serve.responses import Responses
from tokalign.serve.scheduler import Scheduler
from tokalign.serve.streams import Answers, Stream, Written, unless_gone

_APIS: Mapping[str, type[Rendering]] = {
    "/v1/chat/completions": Chats,
    "/v1/completions": Completions,
    "/v1/responses": Responses,
    "/v1/responses/input_tokens": Responses,
    "/v1/messages": Messages,
    "/v1/messages/count_tokens": Messages,
}
_COUNTS: Mapping[str, Mapping[str, str]] = {
    "/v1/responses/input_tokens": {"object": "response.input_tokens"},
    "/v1/messages/count_tokens": {},
}
"""Paths that only count the prompt's tokens, and what they say besides the number."""

_LONGEST_TEXT = 1 << 18
"""Bytes of a text whose Markdown is parsed for the page."""

_PATH = re.compile(r"(\w+)(\.\w+|\[\d+\])*")

_PATIENCE = 3.0
"""Seconds that a question about the server or its models waits while these load, for those who ask
again at once."""


def create_app(scheduler: Scheduler, *, is_local: bool) -> Starlette:
    """The application. is_local: whether only this machine can reach it."""
    edge = _Edge(scheduler)
    routes = [
        Route("/", edge.page),
        Route("/page/markdown", edge.markdown, methods=["POST"]),
        Route("/health", edge.health),
        Route("/metrics", edge.metrics),
        Route("/openapi.json", edge.openapi),
        Route("/v1/models", edge.models),
        Route("/v1/models/", edge.models),
        Route("/v1/models/{name:path}", edge.model),
        Route("/v1/embeddings", edge.embeddings, methods=["POST"]),
        *(Route(path, edge.answer, methods=["POST"]) for path in _APIS),
    ]
    paths = frozenset(route.path for route in routes)
    gate = Middleware(_Gate, scheduler=scheduler, is_local=is_local, paths=paths)
    origins, every = scheduler.settings.allowed_origins, ["*"]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=every,
        allow_headers=every,
        allow_private_network=True,  # Chrome asks for it where a public page calls this machine
    )
    return Starlette(
        routes=routes,
        middleware=[gate, cors],
        exception_handlers={HTTPException: _refused, Refusal: _refused},
    )


class _Edge:
    """The endpoints."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._settings = scheduler, scheduler.settings

    # -- what needs no model -----------------------------------------------------------------------

    async def page(self, request: HttpRequest) -> Response:
        """The chat page. It holds nothing: it asks for the key itself."""
        page, headers = read_page()
        if headers["ETag"] in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page, headers=headers)

    async def markdown(self, request: HttpRequest) -> Response:
        """A text of the page as the tree of its Markdown."""
        self._key(request)
        data = await self._body(request)
        if len(data) > _LONGEST_TEXT:
            raise Refusal(413, f"the text has more than {_LONGEST_TEXT} bytes; it is not parsed")
        text = data.decode("utf-8", "replace")
        return Written({"blocks": await run_in_threadpool(blocks, text)})

    async def health(self, request: HttpRequest) -> Response:
        """Whether requests can be answered; it waits a moment for models that are loading."""
        await self._loaded()
        if self._scheduler.is_healthy:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable"}, 503)

    async def metrics(self, request: HttpRequest) -> Response:
        self._key(request)
        text = self._scheduler.metrics.text()
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def openapi(self, request: HttpRequest) -> Response:
        self._key(request)
        return JSONResponse(openapi({path: api.form for path, api in _APIS.items()}))

    async def models(self, request: HttpRequest) -> Response:
        self._key(request)
        await self._loaded()
        models = self._scheduler.models.model_list()
        ids = [model["id"] for model in models] or [None]
        page = {"first_id": ids[0], "last_id": ids[-1], "has_more": False}  # as Anthropic's list
        return JSONResponse({"object": "list", "data": models, **page})

    async def model(self, request: HttpRequest) -> Response:
        self._key(request)
        name = request.path_params["name"]
        own = self._settings.model if name == DEFAULT else None
        await self._loaded()
        for model in self._scheduler.models.model_list():
            if model["id"] in (name, own):
                return JSONResponse(model)
        raise Refusal(404, f"there is no model {shown(name)}", code="model_not_found")

    async def embeddings(self, request: HttpRequest) -> Response:
        self._key(request)
        raise Refusal(
            501,
            "embeddings are not served: tokalign decodes text, it embeds none; ask a server that "
            "is made for them",
            code="unsupported",
        )

    async def _loaded(self) -> None:
        """Wait a moment for models that are loading, whose context's length is not known yet.

        Not in a thread: those are for bodies, and whoever asks without a key would hold them all.
        """
        begin = monotonic()
        while self._scheduler.is_loading and monotonic() - begin < _PATIENCE:
            await asyncio.sleep(_PATIENCE / 50)

    def _key(self, request: HttpRequest) -> str:
        """The request's API key. Raises: Refusal."""
        return authorized_key(request.headers, self._settings.api_keys)

    # -- answers -----------------------------------------------------------------------------------

    async def answer(self, request: HttpRequest) -> Response:
        """An answer of any API, streamed or whole. Raises: Refusal."""
        try:
            return await self._answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == 400 and refusal.code != "context_length_exceeded":
                refusal.param = _field_in(str(refusal), _APIS[request.url.path].form)
            return _error(request.url.path, refusal)

    async def _answer(self, request: HttpRequest) -> Response:
        key = self._key(request)
        data = await self._body(request)
        path = request.url.path
        # A thread of its own: reading a body takes as long as its grammar is large.
        rendering, requests = await run_in_threadpool(self._read, _APIS[path], data, key)
        if path in _COUNTS:
            requests = [replace(requests[0], only_counts=True)]
        answers = Answers(self._scheduler, requests, rendering.per_prompt)
        try:
            await unless_gone(request, answers.begin())
            if path in _COUNTS:
                return JSONResponse(
                    {**_COUNTS[path], "input_tokens": Usage.of(answers.choices).prompt}
                )
            if rendering.streams:
                return Stream(rendering, answers)
            await unless_gone(request, answers.finish())
            return Written(rendering.whole(answers.choices))
        except BaseException:
            answers.abandon()
            raise

    async def _body(self, request: HttpRequest) -> bytes:
        """The whole body. Raises: Refusal for one that is too long or too slow."""
        most, seconds = self._settings.max_body_size, self._settings.read_timeout
        coding = request.headers.get("Content-Encoding", "identity")
        if coding.lower() != "identity":
            text = f"the body is compressed ({coding[:40]}), and none is unpacked; send it as it is"
            raise Refusal(415, text, code="unsupported_content_encoding")
        data = bytearray()
        try:
            async with asyncio.timeout(seconds):
                length, parts = request.headers.get("Content-Length", ""), request.stream()
                expected = int(length) if length.isdecimal() else 0
                while max(expected, len(data)) <= most:
                    if (part := await anext(parts, None)) is None:
                        return bytes(data)
                    data += part
        except TimeoutError as error:
            raise Refusal(
                408,
                f"the request did not arrive within {seconds:g} seconds",
                headers={"Connection": "close"},
            ) from error
        raise Refusal(
            413,
            f"the body has more than {most} bytes, and no more are read; shorten the request, or "
            "start the server with a larger --max-body-size",
            code="request_too_large",
        )

    def _read(
        self, api: type[Rendering], data: bytes, key: str
    ) -> tuple[Rendering, list[ApiRequest]]:
        body: Common = read(data, api.form)
        requests = body.requests(self._settings, key)
        self._scheduler.models.require_served(requests[0].models)
        return api(body), requests


# -- before and after ------------------------------------------------------------------------------


class _Gate:
    """Middleware: refuses hosts and origins that may not ask, and counts by path and status.

    paths: those that are counted by name.
    """

    def __init__(
        self, app: ASGIApp, *, scheduler: Scheduler, is_local: bool, paths: Collection[str]
    ) -> None:
        self._app, self._paths, self._is_local = app, paths, is_local
        self._settings, self._metrics = scheduler.settings, scheduler.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _in_origin_form(scope)
        full = f"/v1{scope['path']}"  # other servers have them without /v1, too
        if any(f"{full}/".startswith(f"{known}/") for known in self._paths):
            scope = {**scope, "path": full}
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        app = self._app
        try:
            require_allowed(Headers(scope=scope), self._settings, is_local=self._is_local)
        except Refusal as refusal:
            app = _error(scope["path"], refusal)
        await app(scope, receive, count)


def _in_origin_form(scope: Scope) -> Scope:
    """A request as the routes know it. Clients of a proxy name the host in its first line, as in
    `GET http://HOST/PATH`, and that host counts, not the header's (RFC 9112, 3.2.2)."""
    scheme, mark, rest = scope["path"].partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return scope
    host, _, path = rest.partition("/")
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {**scope, "path": f"/{path}", "headers": [(b"host", host.encode()), *headers]}


def _error(path: str, refusal: Refusal) -> Response:
    """A refusal in the form of the API at a path, or at a place below one."""
    api = next((api for above, api in _APIS.items() if f"{path}/".startswith(f"{above}/")), Chats)
    return Written(api.error(refusal), refusal.status, refusal.headers)


def _field_in(text: str, form: type[Common]) -> str | None:
    """The path of a field with which an error begins, if it is about one."""
    path = _PATH.match(text)
    fields = (*form.__struct_fields__, *form.unserved)
    return path[0] if path is not None and path[1] in fields else None


async def _refused(request: HttpRequest, error: Exception) -> Response:
    """A refusal of ours, or of the router: a path, or a method."""
    if isinstance(error, HTTPException):
        path, code = shown(request.url.path), "not_found"
        text = f"there is nothing at {path}"
        if not request.url.path.startswith("/v1"):
            text += "; OpenAI's and Anthropic's APIs are under /v1"
        if error.status_code == 405:
            text, code = f"{path} does not take {request.method}", "method_not_allowed"
        error = Refusal(error.status_code, text, code=code, headers=error.headers)
    assert isinstance(error, Refusal)
    return _error(request.url.path, error)
