"""The loop that starts, moves and ends requests. It alone touches models and caches.

One request alone is speculated. When others arrive it moves into a batch with its cache, and when
one is left that one moves out again and is speculated. On the target's side a move is a cache and
the ids that it holds (`Held`), so the answer goes on as if nothing had happened. Models that cannot
be batched take turns, a round each.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Event
from time import monotonic, sleep
from typing import Any

import mlx.core as mx

from tokalign.errors import TokalignError
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.beginnings import Beginnings
from tokalign.serve.decoding import Batch, Speculation, decoder_of, prompt_of
from tokalign.serve.job import NOTHING, Answer, Asked, Emitted, Held, Job
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Contexts, Models

_IDLE = 0.1
"""Seconds after which a loop with nothing to do looks whether it has to end."""

_THREAD_END, _LONGEST_THREAD_END = 0.05, 5.0
"""Seconds that a thread takes to end after its last line, and those that are waited at most."""

_LOG = logging.getLogger(__name__)


class Scheduler(Beginnings):
    """mlx-lm's response generator with a loop of its own."""

    def __init__(self, models: Models, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.failure: Exception | None = None
        self._ready = Event()
        self._contexts = Contexts(
            size=settings.prompt_cache_size, most_bytes=settings.prompt_cache_bytes
        )
        self._waiting: deque[tuple[Queue[Any], Asked]] = deque()
        self._jobs: list[Job] = []
        self._alone: dict[Job, Speculation] = {}
        self._batch: Batch | None = None
        for name, about, value in (
            ("queue_length", "Requests that wait for their turn.", lambda: self.queue_length),
            ("running_requests", "Requests that are being answered.", lambda: len(self._jobs)),
            ("prompt_cache_bytes", "Bytes of kept contexts.", lambda: self._contexts.nbytes),
        ):
            metrics.watch(name, about, value)
        super().__init__(models, None)

    # -- for the handlers' threads -----------------------------------------------------------------

    @property
    def queue_length(self) -> int:
        """How many requests have not been started."""
        return len(self._waiting) + int(self.requests.qsize())

    @property
    def is_healthy(self) -> bool:
        """Whether requests can be answered."""
        return self.failure is None and bool(self.generation_available())

    def wait_until_ready(self) -> None:
        """Return when the models are loaded. Raises: what went wrong while they were."""
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def stop_and_join(self) -> None:
        """End the loop and wait for its thread, to its very end.

        mlx keeps Python objects in thread-local storage, which is freed after `Thread.join` has
        returned (before Python 3.13). If the interpreter is being finalized by then, the process
        aborts.
        """
        super().stop_and_join()
        task = Path(f"/proc/self/task/{self._generation_thread.native_id}")
        sleep(_THREAD_END)
        deadline = monotonic() + _LONGEST_THREAD_END
        while task.exists() and monotonic() < deadline:
            sleep(_THREAD_END)

    def submit(
        self, asked: Asked, tell: Callable[[int, int], None]
    ) -> tuple[Answer, Iterator[Emitted]]:
        """The answer to a request, once that is started, and the tokens as they come.

        tell: called with how many ids of the prompt have been read, and of how many.
        Raises: Refusal if too many wait, or for a request that cannot be started.
        """
        if self.queue_length >= self.settings.max_waiting:
            raise Refusal(
                429,
                f"{self.queue_length} requests are waiting already; try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        if self._stop or not self.generation_available():
            raise Refusal(503, "the server is shutting down")
        return self.generate(asked, asked, tell)  # type: ignore[no-any-return]

    # -- the loop ----------------------------------------------------------------------------------

    def _run_generate(self) -> None:
        self._stream = mx.default_stream(mx.default_device())
        try:
            self.model_provider.load_default()
            self._ready.set()
            while not self._stop:
                self._admit()
                self._drop_abandoned()
                if self._jobs:
                    self._advance()
            self._refuse_all()
            self._contexts.clear()
            self.model_provider.reset()
        except Exception as error:
            if self._ready.is_set():  # else `wait_until_ready` raises it
                _LOG.exception("the generation thread ended")
            self.failure, self._generation_failed = error, True
        finally:
            self._ready.set()

    def _admit(self) -> None:
        """Start what has arrived, in its order. Waits a moment if there is nothing else to do."""
        timeout = None if self._jobs or self._waiting else _IDLE
        while (request := self._next_request(timeout)) is not None:
            self._waiting.append(request[:2])
            timeout = None
        while self._waiting and len(self._jobs) < self.settings.decode_concurrency:
            queue, asked = self._waiting[0]
            key = self.model_provider.key(asked.model)
            if self._jobs and key != self.model_provider.model_key:
                return  # other models are loaded when those in use are free
            self._waiting.popleft()
            try:
                self.model_provider.require(key)
                job = self._start(queue, asked)
            except Exception as error:
                if not isinstance(error, TokalignError):
                    _LOG.exception("a request could not be started")
                queue.put(error)
                continue
            if job is None:
                queue.put(None)
            else:
                self._jobs.append(job)

    def _drop_abandoned(self) -> None:
        began_by = monotonic() - self.settings.answer_timeout
        for request in [one for one in self._waiting if one[1].is_gone]:
            self._waiting.remove(request)
            request[0].put(Refusal(499, "the client has left"))
            self.metrics.disconnected.inc()
        for job in list(self._jobs):
            if job.is_abandoned:
                self.metrics.disconnected.inc()
                self._finish(job)
            elif job.asked.arrived < began_by:
                job.end("length")
                self._finish(job)

    def _advance(self) -> None:
        """One round of every job, all together or each by itself."""
        if self._are_batched():
            self._advance_by(self._advance_together, self._jobs, "batch")
        else:
            for job in list(self._jobs):
                self._advance_by(partial(self._advance_alone, job), [job], "speculation")

    def _advance_by(self, step: Callable[[], None], jobs: list[Job], decoding: str) -> None:
        """Take a step with these jobs, count what it emitted, and end those that have ended."""
        before = {job: job.answer.completion_tokens for job in jobs}
        try:
            step()
            for job, count in before.items():
                emitted = job.answer.completion_tokens - count
                self.metrics.output_tokens.labels(decoding).inc(emitted)
                if emitted and not count:
                    self.metrics.first_token_seconds.observe(monotonic() - job.asked.arrived)
                if job.ended is not None:
                    self._finish(job)
        except Exception as error:
            _LOG.error("a model failed", exc_info=error)
            self._batch = None  # these jobs may still be in it; nobody else is
            for job in before:  # what their caches hold is not known, so none is kept
                self._alone.pop(job, None)
                job.queue.put(error)
            self._jobs = [job for job in self._jobs if job not in before]
            self._rest_if_idle()

    def _are_batched(self) -> bool:
        if not self.model_provider.is_batchable:
            return False
        (first, *others) = self._jobs
        return bool(others) or not self._can_speculate(first)

    def _can_speculate(self, job: Job) -> bool:
        plain = self.model_provider.decoder.drafting.options.method == "plain"
        return not (plain or job.asked.num_draft_tokens == 0)

    def _advance_together(self) -> None:
        models = self.model_provider
        if self._batch is None:
            self._batch = Batch(models.decoder.target.model, self.settings, self._stream)
        for job in self._jobs:
            if job not in self._batch:
                self._batch.enter(job, self._leave_speculation(job))
        for job, held, kind in self._batch.step():
            self._contexts.keep(job.owner, held, kind)
        self._contexts.leave_room(self._batch.nbytes)

    def _advance_alone(self, job: Job) -> None:
        comes = self._batch is not None and job in self._batch
        if comes or job not in self._alone:
            held = self._batch.leave(job) if self._batch and comes else job.take_opening()
            if job not in self._alone:
                self._alone[job] = self._speculation(job)
            self._alone[job].enter(held)
        self._alone[job].step()

    def _speculation(self, job: Job) -> Speculation:
        decoder = decoder_of(
            self.model_provider.decoder,
            job,
            self.settings,
            drafts=self._can_speculate(job),
            earlier=self._contexts.outputs(job.owner) if self.settings.reuse_outputs else None,
        )
        prompt = prompt_of(decoder, job, self.settings)
        keep = partial(self._contexts.keep, job.owner)
        return Speculation(job, decoder, prompt, metrics=self.metrics, keep=keep)

    def _leave_speculation(self, job: Job) -> Held:
        """The cache of a job that is about to be batched; a later request can go on with it too."""
        if job not in self._alone:
            return job.take_opening()
        held = self._alone[job].leave()
        self._contexts.keep(job.owner, held)
        return held

    # -- ends --------------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """End a job and keep what later requests can use."""
        self._jobs.remove(job)
        speculation = self._alone.pop(job, None)
        held = NOTHING
        if self._batch is not None and job in self._batch:
            held = self._batch.leave(job)
        elif speculation is not None:
            held = speculation.leave()
        draft = () if speculation is None else speculation.close()
        self._contexts.keep(job.owner, held._replace(draft=draft))
        if self.settings.reuse_outputs:
            self._contexts.outputs(job.owner).add(job.emitted)
        job.queue.put(None)
        if speculation is not None:
            self.model_provider.decoder.remember()
        self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        """Give back memory when there is nothing to do."""
        if self._jobs:
            return
        if self._batch is not None:
            self._batch.close()
            self._batch = None
        self._contexts.leave_room(0)
        mx.clear_cache()

    def _refuse_all(self) -> None:
        """Tell everybody who still waits that the server ends."""
        error = Refusal(503, "the server is shutting down")
        for job in list(self._jobs):
            if job in self._alone:
                self._alone.pop(job).close()
            job.queue.put(error)
        self._jobs.clear()
        while (request := self._next_request()) is not None:
            self._waiting.append(request[:2])
        for queue, _ in self._waiting:
            queue.put(error)
