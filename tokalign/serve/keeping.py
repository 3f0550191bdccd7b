"""What answers leave for later requests: contexts in memory and on disk, and the texts themselves.

All of it belongs to one owner, models and an API key, and serves nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from tokalign.names.memory import working_set
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.contexts import Contexts, Held
from tokalign.runtime.mlx.layers import expected_bytes, least_positions
from tokalign.runtime.remembered import OutputStore, OutputStores
from tokalign.serve import Settings
from tokalign.serve.job import Job
from tokalign.serve.models import Models

_READ_AT_ONCE = 32
"""Ids of a prompt that are read in less time than contexts on disk are searched."""

GROWTH = 1024
"""Ids of an answer for which room is made at a time: by default, its limit is the context's."""

_LOG = logging.getLogger(__name__)


@contextmanager
def logged_failures() -> Iterator[None]:
    """Around keeping something of an answer, which is whole without that."""
    try:
        yield
    except Exception as error:
        _LOG.error("what an answer leaves could not be kept", exc_info=error)


class Keeping:
    """What is kept, for the thread that decodes. contexts: those in memory."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models, self._settings = models, settings
        self.contexts = Contexts(
            size=settings.prompt_cache_size, most_bytes=settings.prompt_cache_bytes
        )
        self._outputs = OutputStores()

    def outputs(self, job: Job) -> OutputStore | None:
        """The earlier answers to a job's owner, if later ones may be drafted from them."""
        return self._outputs.of(job.chain.owner) if self._settings.reuse_outputs else None

    def opening(self, job: Job, others: Sequence[Job]) -> Held:
        """The longest context that a job's prompt begins with: from memory, as a copy of what
        answers another request of the same owner now, or else from disk."""
        owner, prompt = job.chain.owner, job.prompt.target
        held = self.contexts.fetch(owner, prompt)
        if not self._models.loaded.forgets:
            for other in others:
                if other.chain.owner == owner and other.answering is not None:
                    target = other.answering.target
                    if (shared := target.shared_with(prompt)) > len(held.ids):
                        held = Held(target.copy_of(shared), list(prompt[:shared]))
        if len(prompt) - len(held.ids) <= _READ_AT_ONCE:
            return held
        found = self._files_of(job).fetch(prompt, than=len(held.ids) + _READ_AT_ONCE)
        return held if found.layers is None else found

    def has_room(self, jobs: Collection[Job]) -> bool:
        """Whether memory has room for the caches of these jobs beside the models."""
        return self._expected_bytes(jobs) <= self._room

    def leave_room(self, jobs: Collection[Job]) -> None:
        """Drop kept contexts that exceed their bound together with the caches of these jobs, and
        those that leave the caches no room to grow."""
        self.contexts.leave_room(sum(job.answering.nbytes for job in jobs if job.answering))
        self.contexts.leave_room(self._expected_bytes(jobs), most=self._room)

    @property
    def _room(self) -> float:
        """Bytes of memory beside the models."""
        return working_set() - self._models.loaded.nbytes

    def _expected_bytes(self, jobs: Collection[Job]) -> float:
        """What the caches of these jobs will take, by those of each model that have read most."""
        loaded = self._models.loaded
        caches = [loaded.samples]
        caches += [job.answering.caches for job in jobs if job.answering]
        layers = [
            layer for of in zip(*caches, strict=True) for layer in max(of, key=least_positions)
        ]
        held = {job: job.answering.nbytes if job.answering else 0 for job in jobs}
        options, ids = loaded.decoder.cache, {job: _expected_ids(job) for job in jobs}
        return sum(
            max(held[job], expected_bytes(layers, ids[job], options))
            + expected_bytes(loaded.own, ids[job])
            for job in jobs
        )

    def keep(self, job: Job, held: Held, *, is_shared: bool | None = False) -> None:
        """Keep a context of a job. is_shared: as of `Job.marks`."""
        if is_shared is not None:
            self.contexts.keep(job.chain, held, is_shared=is_shared)
        self._files_of(job).keep(held)

    def _files_of(self, job: Job) -> ContextFiles:
        key, loaded = job.request.api_key, self._models.loaded
        if key not in loaded.files:
            loaded.files[key] = loaded.decoder.context_files(
                key, most_bytes=self._settings.disk_cache_bytes, note=_LOG.warning
            )
        return loaded.files[key]


def _expected_ids(job: Job) -> int:
    """How many ids a job's caches will hold."""
    written = job.statistics.generation_tokens
    return len(job.ids) + min(job.max_tokens - written, GROWTH - written % GROWTH)
