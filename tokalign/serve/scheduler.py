"""The loop that starts, advances and ends jobs. It alone touches models and caches.

A job that has been prepared (`preparing.py`) reads its prompt in steps, one step of one job in
every turn of the loop, and then all jobs that have read theirs have a round: together in one pass
of the target, or one after another where its caches cannot share passes (`runtime/batch.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import mlx.core as mx

from tokalign.errors import TokalignError
from tokalign.runtime.mlx.contexts import Chain
from tokalign.runtime.rounds import Round
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.decoding import Answering, request_of
from tokalign.serve.job import Item, Job, State
from tokalign.serve.keeping import GROWTH, Keeping, logged_failures
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Models
from tokalign.serve.preparing import Preparing
from tokalign.serve.request import ApiRequest, ModelNames
from tokalign.serve.waiting import WaitingRoom, end_of_service

_IDLE = 0.1
"""Seconds after which an idle loop checks whether clients have left."""

_THREAD_END, _LONGEST_THREAD_END = 0.05, 5.0
"""Seconds between two looks at whether a thread has ended, and in all."""

_LOG = logging.getLogger(__name__)


class Scheduler:
    """Answers requests, in a thread that loads the models first. failure: what ended the thread."""

    def __init__(self, models: Models, settings: Settings, metrics: Metrics) -> None:
        self.models, self.settings, self.metrics = models, settings, metrics
        self.failure: Exception | None = None
        self._ready = Event()
        self._waiting = WaitingRoom(settings.max_waiting)
        self._kept = Keeping(models, settings)
        self._jobs: list[Job] = []
        self._has_worked = self._shortest_first = False
        self._preparing = Preparing(self._waiting.wake)
        for name, about, value in (
            ("queue_length", "Requests that wait for their turn.", lambda: len(self._waiting)),
            ("running_requests", "Requests that are being answered.", lambda: len(self._jobs)),
            ("prompt_cache_bytes", "Bytes of kept contexts.", lambda: self._kept.contexts.nbytes),
        ):
            metrics.watch(name, about, value)
        self._thread = Thread(target=self._run, name="decoding")
        self._thread.start()

    # -- for the threads of others -----------------------------------------------------------------

    @property
    def is_healthy(self) -> bool:
        """Whether requests can be answered."""
        is_open = self._ready.is_set() and not self._waiting.is_closed
        return is_open and self.failure is None

    @property
    def is_loading(self) -> bool:
        """Whether the models that it was started with are not loaded yet."""
        return not self._ready.is_set()

    def wait_until_ready(self) -> None:
        """Return when the models are loaded. Raises: what went wrong while they were."""
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def submit(self, request: ApiRequest, put: Callable[[Item], None]) -> None:
        """Have a request answered. put: as of a `Job`; whatever happens, it is called with an end.

        Raises: Refusal if too many wait, or at the end.
        """
        self._waiting.enter(Job(request=request, put=put, key=self.models.key(request.models)))

    def stop(self) -> None:
        """End the loop after its current step, and refuse at once what waits."""
        self._waiting.close()

    def join(self) -> None:
        """Wait for the end of the loop, and wake every second.

        Python handles signals in the main thread. A signal that another thread receives, as after
        the process was stopped (Ctrl-Z), does not wake that.
        """
        while self._thread.is_alive():
            self._thread.join(1.0)

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
        """Have new requests prepared, and start those that are, in the order of their arrival.
        The choices of one body are prepared one after another: they may be many."""
        under_way = set[Event]()  # bodies whose next request is prepared, or waits for a place
        for job in self._waiting.all():
            if job.request.abandoned in under_way:
                continue
            if not self.models.are_loaded(job.key):
                if self._jobs or under_way:
                    return  # other models are loaded when those in use are free
                try:
                    self.models.require(job.key)
                except Exception as error:
                    self._refuse(job, error)
                    continue
            if job.state is State.ARRIVED:
                self._preparing.submit(job, self.models.loaded)
            takes_a_place = job.failure is None and not job.request.only_counts
            if job.state is State.PREPARED and (not takes_a_place or self._has_place(job)):
                self._start(job)
            else:
                under_way.add(job.request.abandoned)

    def _has_place(self, job: Job) -> bool:
        """Whether a request may be decoded with the others. The choices of one body leave as many
        places as they have, or a single body of many would keep everybody else waiting."""
        places = self.settings.decode_concurrency - len(self._jobs)
        siblings = sum(other.request.abandoned is job.request.abandoned for other in self._jobs)
        return max(1, siblings) <= places

    def _start(self, job: Job) -> None:
        """Take in a request that has been prepared, or end it if it cannot be answered."""
        if job.failure is not None:
            self._refuse(job, job.failure)
            return
        request = job.request
        if not self._waiting.take(job):
            return
        job.chain = Chain((job.key, request.api_key), len(job.prompt.target))
        job.put(job)
        if request.only_counts:
            self._end(job, None)
            return
        self.metrics.prompt_tokens.inc(len(job.ids))
        job.enter(State.READING)
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
            elif job.is_enough or job.request.arrived < began_by:
                job.end("length")
                self._finish(job)

    def _rest(self) -> None:
        """Give back memory, and wait for something to do."""
        self._check()
        if not self._waiting.wait(_IDLE) and self._has_worked:
            self._has_worked = False
            self._kept.contexts.leave_room(0)
            mx.clear_cache()

    def _check(self) -> None:
        """What has to be true when nothing runs."""
        assert not self._jobs
        states = {job.state for job in self._waiting.all()}
        assert states <= {State.ARRIVED, State.PREPARING, State.PREPARED}, states
        self._kept.contexts.check()

    # -- steps and rounds --------------------------------------------------------------------------

    def _advance(self) -> None:
        """A step of reading, and a round of all jobs that have read their prompts."""
        self._has_worked = True
        reading = [job for job in self._jobs if job.state is State.READING]
        is_full = False
        for job in self._in_turn(reading[: self.settings.prompt_concurrency]):
            begins = job.answering is None
            is_full = is_full or (begins and not self._finds_room(job))
            if not (begins and is_full) and self._read(job):
                break
        jobs = [job for job in self._jobs if job.state is State.DECODING]
        if jobs:
            self._decode(jobs)

    def _finds_room(self, job: Job) -> bool:
        """Whether memory has room for the caches of a job that has not begun and of the oldest such
        job beside those in use: none is overtaken forever."""
        oldest = next(other for other in self._jobs if other.answering is None)
        return not self._begun or self._kept.has_room({*self._begun, oldest, job})

    @property
    def _begun(self) -> list[Job]:
        """The jobs that have caches."""
        return [job for job in self._jobs if job.answering is not None]

    def _in_turn(self, reading: list[Job]) -> list[Job]:
        """Whose step comes next: by turns the oldest job's and that with the least left to read.

        So a short prompt waits for no long one, and nobody waits forever. What begins alike is read
        once: the oldest reads it, and the others begin with a copy.
        """
        has_begun = any(job.answering is not None for job in reading)
        self._shortest_first = has_begun and not self._shortest_first
        return sorted(reading, key=_left_to_read) if self._shortest_first else reading

    def _read(self, job: Job) -> bool:
        """Read a part of a job's prompt. Returns: whether there was any, or it took time."""
        try:
            if job.answering is None:
                job.answering = self._open(job)
            kept = job.answering.read()
            with logged_failures():
                for cache in kept or ():
                    self._kept.keep(job, cache.held, is_shared=cache.is_shared)
        except Exception as error:
            self._abort(job, error)
            return True
        if kept is None:
            job.enter(State.DECODING)
        return kept is not None

    def _open(self, job: Job) -> Answering:
        held = self._kept.opening(job, self._jobs)
        job.cached = len(held.ids)
        self.metrics.cached_tokens.inc(job.cached)
        loaded = self.models.loaded
        self._kept.leave_room([job, *self._begun])
        request = request_of(job, loaded, self._kept.outputs(job))
        return Answering(job, loaded.decoder, request, held)

    def _decode(self, jobs: list[Job]) -> None:
        """Run a round of these jobs, hand over what it emitted, and end those that have ended."""
        batch = self.models.loaded.batch
        try:
            rounds = batch.round([_answering(job).generation.decoding for job in jobs])
        except Exception as error:
            for job in jobs:
                self._abort(job, error)
            return
        decoding = "batch" if batch.shares_passes and len(jobs) > 1 else "speculation"
        for job, outcome in zip(jobs, rounds, strict=True):
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                self._hand_over(job, outcome, decoding)
            except Exception as error:
                self._abort(job, error)
                continue
            if job.ended is not None:
                self._finish(job)

    def _hand_over(self, job: Job, round_: Round, decoding: str) -> None:
        """Hand over what a round has emitted, and count it."""
        before = job.statistics.generation_tokens
        _answering(job).deliver(round_)
        after = job.statistics.generation_tokens
        self.metrics.observe(round_)
        self.metrics.output_tokens.labels(decoding).inc(after - before)
        if before // GROWTH < after // GROWTH:
            self._kept.leave_room(self._begun)
        if not before:
            self.metrics.first_token_seconds.observe(monotonic() - job.request.arrived)

    # -- ends --------------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        """End a job and keep what later requests can use."""
        self._jobs.remove(job)
        with logged_failures():
            if job.answering is not None:
                self._kept.keep(job, job.answering.close())
        with logged_failures():
            self.models.loaded.decoder.remember()
            if (outputs := self._kept.outputs(job)) is not None:
                outputs.add(job.emitted)
        self._end(job, None)

    def _abort(self, job: Job, error: Exception) -> None:
        """End a job that has failed. What its caches hold is not known: none is kept."""
        if not isinstance(error, TokalignError):
            _LOG.error("a model failed", exc_info=error)
        self._jobs.remove(job)
        self._end(job, error)

    def _end(self, job: Job, error: Exception | None) -> None:
        job.enter(State.ENDED)
        job.answering = None
        job.put(error)
        # It leads back to the job: caches would live until Python looks for cycles.
        job.put = _unheard

    def _close(self) -> None:
        """Refuse whoever still waits, and give everything back in the thread that made it."""
        self.stop()
        for job in self._jobs:
            self._end(job, end_of_service())
        self._jobs.clear()
        self._preparing.stop()
        self._kept.contexts.clear()
        self.models.reset()
        self._ready.set()


def _unheard(_item: Item) -> None:
    """Nothing follows the end of an answer."""


def _answering(job: Job) -> Answering:
    assert job.answering is not None, "it has begun to read"
    return job.answering


def _left_to_read(job: Job) -> int:
    return len(job.ids) if job.answering is None else job.answering.left
