"""The loop that starts, moves and ends jobs. It alone touches models and caches.

A job that has been prepared (`preparing.py`) is started here. Alone it is decoded by speculation.
When others arrive it moves into a batch with its cache, and the last one left moves out again. A
move takes the target's cache and the ids in it (`Held`), so the answer goes on as if nothing had
happened. Jobs of models that cannot be batched take turns, a round each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import mlx.core as mx

from tokalign.errors import TokalignError
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.contexts import NOTHING, Chain, Contexts, Held
from tokalign.runtime.remembered import OutputStores
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.decoding import Batch, Speculation, decoder_of
from tokalign.serve.job import Item, Job
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Models
from tokalign.serve.preparing import Preparing, sampling_of
from tokalign.serve.request import ModelNames, Request
from tokalign.serve.waiting import WaitingRoom, end_of_service

_IDLE = 0.1
"""Seconds after which an idle loop checks whether clients have left."""

_THREAD_END, _LONGEST_THREAD_END = 0.05, 5.0
"""Seconds between two looks at whether a thread has ended, and in all."""

_READ_AT_ONCE = 32
"""Ids of a prompt that are read in less time than contexts on disk are searched."""

_LOG = logging.getLogger(__name__)


class Scheduler:
    """Answers requests, in a thread that loads the models first. failure: what ended the thread."""

    def __init__(self, models: Models, settings: Settings, metrics: Metrics) -> None:
        self.models, self.settings, self.metrics = models, settings, metrics
        self.failure: Exception | None = None
        self._ready = Event()
        self._waiting = WaitingRoom(settings.max_waiting)
        self._contexts = Contexts(
            size=settings.prompt_cache_size, most_bytes=settings.prompt_cache_bytes
        )
        self._outputs = OutputStores()
        self._files: dict[Hashable, ContextFiles] = {}
        self._jobs: list[Job] = []
        self._batch: Batch | None = None
        self._preparing = Preparing(self._waiting.wake)
        for name, about, value in (
            ("queue_length", "Requests that wait for their turn.", lambda: len(self._waiting)),
            ("running_requests", "Requests that are being answered.", lambda: len(self._jobs)),
            ("prompt_cache_bytes", "Bytes of kept contexts.", lambda: self._contexts.nbytes),
        ):
            metrics.watch(name, about, value)
        self._thread = Thread(target=self._run, name="decoding")
        self._thread.start()

    # -- for the threads of others -----------------------------------------------------------------

    @property
    def is_healthy(self) -> bool:
        is_open = self._ready.is_set() and not self._waiting.is_closed
        return is_open and self.failure is None

    @property
    def is_loading(self) -> bool:
        return not self._ready.is_set()

    def wait_until_ready(self) -> None:
        """Return when the models are loaded. Raises: what went wrong while they were."""
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def submit(self, request: Request, put: Callable[[Item], None]) -> None:
        """Have a request answered. put: as of a `Job`; whatever happens, it is called with an end.

        Raises: Refusal if too many wait, or at the end.
        """
        self._waiting.enter(Job(request=request, put=put, key=self.models.key(request.models)))

    def stop(self) -> None:
        """End the loop after its current step, and refuse at once what waits."""
        self._waiting.close()

    def join(self) -> None:
        self._thread.join()

    def stop_and_join(self) -> None:
        """End the loop and wait until the system has ended its thread.

        mlx keeps Python objects in thread-local storage, which is freed after `Thread.join` has
        returned (before Python 3.13). The process aborts if the interpreter is gone by then.
        """
        self.stop()
        self.join()
        task = Path(f"/proc/self/task/{self._thread.native_id}")
        sleep(_THREAD_END)
        deadline = monotonic() + _LONGEST_THREAD_END
        while task.exists() and monotonic() < deadline:
            sleep(_THREAD_END)

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        self._stream = mx.default_stream(mx.default_device())
        try:
            if self.settings.model is not None:
                self.models.require(self.models.key(ModelNames()))
            self._ready.set()
            while not self._waiting.is_closed:
                self._admit()
                self._drop_abandoned()
                if self._jobs:
                    self._advance()
                else:
                    self._rest()
        except Exception as error:
            if self._ready.is_set():  # else `wait_until_ready` raises it
                _LOG.exception("the thread that decodes ended")
            self.failure = error
        finally:
            self._close()

    def _admit(self) -> None:
        """Have new requests prepared, and start those that are, in the order of their arrival."""
        under_way = False  # whether an earlier request is being prepared, or has been
        for job in self._waiting.all():
            if not self.models.are_loaded(job.key):
                if self._jobs or under_way:
                    return  # other models are loaded when those in use are free
                try:
                    self.models.require(job.key)
                except Exception as error:
                    self._refuse(job, error)
                    continue
            if not job.is_submitted:
                self._preparing.submit(job, self.models.loaded)
            takes_a_place = job.failure is None and not job.request.only_counts
            has_place = len(self._jobs) < self.settings.decode_concurrency or not takes_a_place
            if job.is_prepared and has_place:
                self._start(job)
            else:
                under_way = True

    def _start(self, job: Job) -> None:
        """Begin to decode a request that has been prepared, or end it if it cannot be."""
        request, prompt = job.request, job.prompt.target
        try:
            if job.failure is not None:
                raise job.failure
            job.sampler = sampling_of(self.models.loaded, request)
            job.chain = Chain((job.key, request.api_key), len(prompt))
            if not request.only_counts:
                job.opening = self._opening(job)
            job.cached = len(job.opening.ids)
        except Exception as error:
            self._refuse(job, error)
            return
        if not self._waiting.take(job):
            return
        job.put(job)
        if request.only_counts:
            job.put(None)
            return
        self.metrics.prompt_tokens.inc(len(job.ids))
        self.metrics.cached_tokens.inc(job.cached)
        self._jobs.append(job)

    def _refuse(self, job: Job, error: Exception) -> None:
        if not isinstance(error, TokalignError):
            _LOG.error("a request could not be started", exc_info=error)
        self._waiting.end(job, error)

    def _drop_abandoned(self) -> None:
        began_by = monotonic() - self.settings.answer_timeout
        for job in self._waiting.all():
            left = Refusal(499, "the client has left")
            if job.request.abandoned.is_set() and self._waiting.end(job, left):
                self.metrics.disconnected.inc()
        for job in list(self._jobs):
            if job.request.abandoned.is_set():
                self.metrics.disconnected.inc()
                self._finish(job)
            elif job.request.arrived < began_by:
                job.end("length")
                self._finish(job)

    def _rest(self) -> None:
        """Give back memory, and wait for something to do."""
        assert self._batch is None or not len(self._batch), "an idle batch holds no job"
        if not self._waiting.wait(_IDLE) and self._batch is not None:
            self._batch.close()
            self._batch = None
            self._contexts.leave_room(0)
            mx.clear_cache()

    # -- rounds ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """One round of every job, all together or each by itself."""
        if self._are_batched():
            self._step(self._open_batch, list(self._jobs), "batch")
        else:
            for job in list(self._jobs):
                self._step(partial(self._speculation_of, job), [job], "speculation")

    def _step(
        self, open_place: Callable[[], Batch | Speculation], jobs: list[Job], decoding: str
    ) -> None:
        """Take a step with these jobs, count what it emitted, and end those that have ended."""
        before = [job.completion_tokens for job in jobs]
        try:
            place = open_place()
            for job in jobs:
                if job.place is not place:
                    self._move(job, place)
            for kept in place.step():
                self._keep(kept.job, kept.held, is_shared=kept.is_shared)
            if isinstance(place, Batch):
                self._contexts.leave_room(place.nbytes)
        except Exception as error:
            self._abort(jobs, error)
            return
        for job, count in zip(jobs, before, strict=True):
            emitted = job.completion_tokens - count
            self.metrics.output_tokens.labels(decoding).inc(emitted)
            if emitted and not count:
                self.metrics.first_token_seconds.observe(monotonic() - job.request.arrived)
            if job.ended is not None or job.failure is not None:
                self._finish(job)

    def _move(self, job: Job, place: Batch | Speculation) -> None:
        """Have a job go on in another place, with its cache."""
        held = job.leave()
        if isinstance(place, Batch) and job.place is not None and not self.models.loaded.forgets:
            self._keep(job, held)  # the next request may begin like it
        place.enter(job, held)
        job.place = place

    def _are_batched(self) -> bool:
        if not self.models.loaded.is_batchable:
            return False
        (first, *others) = self._jobs
        return bool(others) or not self._can_speculate(first)

    def _can_speculate(self, job: Job) -> bool:
        plain = self.models.loaded.decoder.drafting.options.method == "plain"
        return not (plain or job.request.num_draft_tokens == 0)

    def _open_batch(self) -> Batch:
        if self._batch is None:
            model = self.models.loaded.decoder.target.model
            self._batch = Batch(model, self.settings, self._stream)
        return self._batch

    def _speculation_of(self, job: Job) -> Speculation:
        if job.speculation is None:
            reuses, owner = self.settings.reuse_outputs, job.chain.owner
            decoder = decoder_of(
                self.models.loaded.decoder,
                job,
                self.settings,
                drafts=self._can_speculate(job),
                earlier=self._outputs.of(owner) if reuses else None,
            )
            job.speculation = Speculation(job, decoder, self.metrics)
        return job.speculation

    # -- contexts ----------------------------------------------------------------------------------

    def _opening(self, job: Job) -> Held:
        """The longest context that a job's prompt begins with: from memory, or else from disk."""
        prompt = job.prompt.target
        held = self._contexts.fetch(job.chain.owner, prompt)
        if len(prompt) - len(held.ids) <= _READ_AT_ONCE:
            return held
        found = self._files_of(job).fetch(prompt, than=len(held.ids) + _READ_AT_ONCE)
        return held if found.layers is None else found

    def _keep(self, job: Job, held: Held, *, is_shared: bool | None = False) -> None:
        if is_shared is not None:
            self._contexts.keep(job.chain, held, is_shared=is_shared)
        self._files_of(job).keep(held)

    def _files_of(self, job: Job) -> ContextFiles:
        owner = job.chain.owner
        if owner not in self._files:
            self._files[owner] = self.models.loaded.decoder.context_files(
                job.request.api_key, most_bytes=self.settings.disk_cache_bytes, note=_LOG.warning
            )
        return self._files[owner]

    # -- ends --------------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """End a job and keep what later requests can use."""
        self._jobs.remove(job)
        try:
            held = NOTHING if job.place is None else job.place.leave(job)
            draft = () if job.speculation is None else job.speculation.close()
            self._keep(job, held._replace(draft=draft))
            if self.settings.reuse_outputs:
                self._outputs.of(job.chain.owner).add(job.emitted)
        except Exception as error:
            _LOG.error("what an answer leaves could not be kept", exc_info=error)
            job.failure = job.failure or error
        job.put(job.failure)
        if job.speculation is not None:
            self.models.loaded.decoder.remember()

    def _abort(self, jobs: list[Job], error: Exception) -> None:
        """End jobs whose step has failed. What their caches hold is not known: none is kept."""
        if not isinstance(error, TokalignError):
            _LOG.error("a model failed", exc_info=error)
        if any(job.place is self._batch for job in jobs):
            self._batch = None  # nobody else is in it
        for job in jobs:
            job.put(error)
        self._jobs = [job for job in self._jobs if job not in jobs]

    def _close(self) -> None:
        """Refuse whoever still waits, and give everything back in the thread that made it."""
        self.stop()
        for job in self._jobs:
            job.put(end_of_service())
        self._jobs.clear()
        self._batch = None
        self._preparing.stop()
        self._contexts.clear()
        self._files.clear()
        self.models.reset()
        self._ready.set()
