"""Answers on their way to a client: from the scheduler's thread to the steps of all choices.

The scheduler's thread puts the items of every job into a queue of the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from tokalign.conversation.blocks import Step
from tokalign.runtime.rounds import Reading
from tokalign.serve.admission import Refusal, refusal_of
from tokalign.serve.answer import Choice, Rendering
from tokalign.serve.job import Emitted, Item, Job
from tokalign.serve.request import ApiRequest
from tokalign.serve.scheduler import Scheduler

_SILENCE = 1.0
"""Seconds without a step after which a stream says that it is alive."""


class Answers:
    """The answers to the requests of one body, as the scheduler gives them.

    choices: one for each request, once all have been started. per_prompt: how many requests in a
    row have the same prompt.
    """

    def __init__(
        self, scheduler: Scheduler, requests: Sequence[ApiRequest], per_prompt: int
    ) -> None:
        self.choices: list[Choice] = []
        self._scheduler, self._requests, self._per_prompt = scheduler, requests, per_prompt
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._early: deque[tuple[int, Item]] = deque()

    async def begin(self) -> None:
        """Have the requests started. Raises: as that does."""
        for index, request in enumerate(self._requests):
            self._scheduler.submit(request, partial(self._put, index))
        started: dict[int, Choice] = {}
        while len(started) < len(self._requests):
            index, item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Job):
                is_first = index % self._per_prompt == 0
                started[index] = Choice(index, item, counts_prompt=is_first)
            else:
                self._early.append((index, item))
        self.choices = [started[index] for index in sorted(started)]

    async def steps(self) -> AsyncIterator[tuple[Choice, Step | None] | Reading | None]:
        """The steps of all choices, where None follows the last of each, and of reading prompts;
        None for a silence.

        Raises: what an answer fails with.
        """
        running, silent_from = len(self.choices), self._loop.time()
        while running:
            told: Iterable[tuple[Choice, Step | None] | Reading | None]
            try:
                index, item = await self._next(silent_from + _SILENCE - self._loop.time())
            except TimeoutError:
                told = [None]
            else:
                choice = self.choices[index]
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, Reading):
                    told = [item]
                elif isinstance(item, Emitted):
                    told = ((choice, step) for step in choice.feed(item))
                elif choice.reason is None:
                    raise Refusal(503, "the answer was given up")
                else:
                    running -= 1
                    told = [(choice, None)]
            for each in told:
                yield each
                silent_from = self._loop.time()

    async def finish(self) -> None:
        """Wait for the end of all choices. Raises: as `steps`."""
        async for _ in self.steps():
            pass

    def abandon(self) -> None:
        """Nobody waits any more."""
        for request in self._requests:
            request.abandoned.set()

    async def _next(self, seconds: float) -> tuple[int, Item]:
        if self._early:
            return self._early.popleft()
        return await asyncio.wait_for(self._items.get(), seconds)

    def _put(self, index: int, item: Item) -> None:
        """Called by the scheduler's threads."""
        with suppress(RuntimeError):  # the event loop has ended with all of its clients
            self._loop.call_soon_threadsafe(self._items.put_nowait, (index, item))


class Written(JSONResponse):
    """JSON in ASCII, as events are: models write halves of surrogate pairs, which UTF-8 has not."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


class Stream(StreamingResponse):
    """The events of a request's answers."""

    def __init__(self, rendering: Rendering, answers: Answers) -> None:
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
                events: Iterable[bytes]
                if isinstance(step, Reading):
                    events = rendering.reading(step)
                else:
                    events = [rendering.keep_alive()] if step is None else rendering.step(*step)
                for data in events:
                    yield data
            for data in rendering.end(choices):
                yield data
        except Exception as error:
            yield rendering.fail(refusal_of(error))


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
    """Do this work while the client is there. Raises: ClientDisconnect, and as the work does."""
    task, watch = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        task.result()
    finally:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # as seen
        task.cancel()
        watch.cancel()


async def _gone(request: HttpRequest) -> None:
    """Return when the client has left; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
