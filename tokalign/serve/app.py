"""HTTP: paths, statuses and streams, as a Starlette application.

Every API has a `Rendering`, which reads its requests and writes its answers. What is between, from
an `Asked` to the steps of an answer, is the same for all: the scheduler's thread puts what becomes
of a request into a queue of this event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokalign import __version__
from tokalign.conversation.blocks import Step
from tokalign.serve.admission import Refusal, authorized_key, refusal_of, require_allowed
from tokalign.serve.answer import Choice, Rendering, Usage
from tokalign.serve.body import Common, read
from tokalign.serve.completions import Chats, Completions
from tokalign.serve.job import Answer, Emitted
from tokalign.serve.messages import Messages
from tokalign.serve.request import Asked
from tokalign.serve.responses import Responses
from tokalign.serve.scheduler import Scheduler

_COUNT_TOKENS = "/v1/messages/count_tokens"
_APIS: Mapping[str, type[Rendering]] = {
    "/v1/chat/completions": Chats,
    "/chat/completions": Chats,
    "/v1/completions": Completions,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
    _COUNT_TOKENS: Messages,
}
_PATIENCE = 3.0
"""Seconds that a question about the server's health waits while the models load."""

_SILENCE = 1.0
"""Seconds after which a stream says that it is alive."""

_LOG = logging.getLogger(__name__)


def create_app(scheduler: Scheduler, *, is_local: bool) -> Starlette:
    """The application. is_local: whether only this machine can reach it."""
    edge = _Edge(scheduler)
    routes = [
        Route("/", edge.page),
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
        CORSMiddleware, allow_origins=origins, allow_methods=every, allow_headers=every
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

    async def page(self, request: Request) -> Response:
        """The chat page. It holds nothing: it asks for the key itself."""
        page, headers = _read_page()
        if headers["ETag"] in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page, headers=headers)

    async def health(self, request: Request) -> Response:
        """Whether requests can be answered; it waits a moment for models that are loading."""
        begin = monotonic()
        while self._scheduler.is_loading and monotonic() - begin < _PATIENCE:
            await asyncio.sleep(_PATIENCE / 50)
        if self._scheduler.is_healthy:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable"}, 503)

    async def metrics(self, request: Request) -> Response:
        self._key(request)
        text = self._scheduler.metrics.text()
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def openapi(self, request: Request) -> Response:
        self._key(request)
        return JSONResponse(_openapi())

    async def models(self, request: Request) -> Response:
        self._key(request)
        models = self._scheduler.models.model_list()
        return JSONResponse({"object": "list", "data": models, "has_more": False})

    async def model(self, request: Request) -> Response:
        self._key(request)
        name = request.path_params["name"]
        for model in self._scheduler.models.model_list():
            if model["id"] == name:
                return JSONResponse(model)
        raise Refusal(404, f"there is no model {name!r}", code="model_not_found")

    async def embeddings(self, request: Request) -> Response:
        self._key(request)
        raise Refusal(
            501,
            "embeddings are not served: tokalign decodes text, it embeds none; ask a server that "
            "is made for them",
            code="unsupported",
        )

    def _key(self, request: Request) -> str:
        """The request's API key. Raises: Refusal."""
        return authorized_key(request.headers, self._settings.api_keys)

    # -- answers -----------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        """An answer of any API, streamed or whole. Raises: Refusal."""
        try:
            return await self._answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            return _error(request.url.path, _refusal_of(error))

    async def _answer(self, request: Request) -> Response:
        key = self._key(request)
        data = await self._body(request)
        path = request.url.path
        # A thread of its own: reading a body takes as long as its grammar is large.
        rendering, requests = await run_in_threadpool(self._read, _APIS[path], data, key)
        if path == _COUNT_TOKENS:
            requests = [replace(requests[0], only_counts=True)]
        answers = _Answers(self._scheduler, requests, per_prompt=rendering.per_prompt)
        try:
            await _unless_gone(request, answers.begin())
            if path == _COUNT_TOKENS:
                return JSONResponse({"input_tokens": Usage.of(answers.choices).prompt})
            if rendering.streams:
                return _Stream(rendering, answers)
            await _unless_gone(request, answers.finish())
            return _Written(rendering.whole(answers.choices))
        except BaseException:
            answers.abandon()
            raise

    async def _body(self, request: Request) -> bytes:
        """The whole body. Raises: Refusal for one that is too long or too slow."""
        most, seconds = self._settings.max_body_size, self._settings.read_timeout
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

    def _read(self, api: type[Rendering], data: bytes, key: str) -> tuple[Rendering, list[Asked]]:
        body: Common = read(data, api.form)
        requests = body.requests(self._settings, key)
        self._scheduler.models.require_served(requests[0].models)
        return api(body), requests


class _Answers:
    """The answers to the requests of one body, as the scheduler gives them.

    choices: one for each request, once it has been started. per_prompt: requests that have the
    same prompt follow each other, so many at a time.
    """

    def __init__(self, scheduler: Scheduler, requests: Sequence[Asked], *, per_prompt: int) -> None:
        self._requests, self._per_prompt = requests, per_prompt
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._early: deque[tuple[int, Any]] = deque()
        self._started: dict[int, Choice] = {}
        self._submit = scheduler.submit

    @property
    def choices(self) -> list[Choice]:
        return [self._started[index] for index in range(len(self._started))]

    async def begin(self) -> None:
        """Have the requests started. Raises: as that does."""
        for index, asked in enumerate(self._requests):
            self._submit(asked, partial(self._put, index))
        while len(self._started) < len(self._requests):
            index, item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            if not isinstance(item, Answer):
                self._early.append((index, item))
                continue
            is_first = index % self._per_prompt == 0
            asked = self._requests[index]
            self._started[index] = Choice(index, asked, item, counts_prompt=is_first)

    async def steps(self) -> AsyncIterator[tuple[Choice, Step | None] | None]:
        """The steps of all choices, where None follows the last of each; None for a silence.

        Raises: what an answer fails with.
        """
        running = len(self._started)
        while running:
            try:
                index, item = await self._next()
            except TimeoutError:
                yield None
                continue
            choice = self._started[index]
            match item:
                case Emitted():
                    for step in choice.feed(item):
                        yield choice, step
                case Exception():
                    raise item
                case None if choice.reason is None:
                    raise Refusal(503, "the answer was given up")
                case None:
                    running -= 1
                    yield choice, None

    async def finish(self) -> None:
        """Wait for the end of all choices. Raises: as `steps`."""
        async for _ in self.steps():
            pass

    def abandon(self) -> None:
        """Nobody waits any more."""
        for asked in self._requests:
            asked.abandoned.set()

    async def _next(self) -> tuple[int, Any]:
        if self._early:
            return self._early.popleft()
        return await asyncio.wait_for(self._items.get(), _SILENCE)

    def _put(self, index: int, item: Any) -> None:
        """Called by the scheduler's threads."""
        with suppress(RuntimeError):  # the event loop has ended with all of its clients
            self._loop.call_soon_threadsafe(self._items.put_nowait, (index, item))


class _Written(JSONResponse):
    """JSON in ASCII, as events are: models write halves of surrogate pairs, which UTF-8 has not."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


class _Stream(StreamingResponse):
    """The events of a request's answers."""

    def __init__(self, rendering: Rendering, answers: _Answers) -> None:
        self._rendering, self._answers = rendering, answers
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        super().__init__(self._events(), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.abandon()

    async def _events(self) -> AsyncIterator[bytes]:
        rendering, choices = self._rendering, self._answers.choices
        try:
            for data in rendering.begin(choices):
                yield data
            async for step in self._answers.steps():
                events = [rendering.keep_alive()] if step is None else rendering.step(*step)
                for data in events:
                    yield data
            for data in rendering.end(choices):
                yield data
        except Exception as error:
            yield rendering.fail(_refusal_of(error))


async def _unless_gone(request: Request, work: Coroutine[Any, Any, None]) -> None:
    """Do this work while the client is there. Raises: ClientDisconnect, and as the work does."""
    task, watch = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        task.result()
    finally:
        task.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody else asks
        task.cancel()
        watch.cancel()


async def _gone(request: Request) -> None:
    """Return when the client has left; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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


def _refusal_of(error: Exception) -> Refusal:
    """What a client is told about an error; a fault of ours is logged."""
    refusal = refusal_of(error)
    if refusal.status >= 500 and error is not refusal:
        _LOG.error("%s", refusal, exc_info=error)
    return refusal


def _error(path: str, refusal: Refusal) -> Response:
    """A refusal in the form of the API at a path."""
    api = _APIS.get(path, Chats)
    return _Written(api.error(refusal), refusal.status, refusal.headers)


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal of ours, or of the router: a path, or a method."""
    if isinstance(error, HTTPException):
        told, code = f"there is nothing at {request.url.path}", "not_found"
        if error.status_code == 405:
            told, code = f"{request.url.path} does not take {request.method}", "method_not_allowed"
        error = Refusal(error.status_code, told, code=code, headers=error.headers)
    assert isinstance(error, Refusal)
    return _error(request.url.path, error)


@cache
def _openapi() -> dict[str, Any]:
    """The bodies of all APIs, as an OpenAPI document."""
    forms = {path: api.form for path, api in _APIS.items()}
    kinds = list(dict.fromkeys(forms.values()))
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_form = dict(zip(kinds, refs, strict=True))
    paths: dict[str, Any] = {}
    for path, form in forms.items():
        content = {"application/json": {"schema": by_form[form]}}
        operation = {
            "summary": (form.__doc__ or "").partition("\n")[0],
            "requestBody": {"required": True, "content": content},
            "responses": {"200": {"description": "The answer, or its events."}},
        }
        paths[path] = {"post": operation}
    info = {"title": "tokalign serve", "version": __version__}
    components = {"schemas": schemas}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


# -- the page --------------------------------------------------------------------------------------


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
