"""Requests that are there together, decoded plainly in mlx-lm's batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from mlx_lm.generate import BatchGenerator
from mlx_lm.server import make_stop_sequences

from tokalign.serve.contexts import Held
from tokalign.serve.job import Job
from tokalign.serve.settings import Settings
from tokalign.tokenizer.vocabulary import TargetId


class Read(NamedTuple):
    """The cache of a job whose prompt has been read to the end of a segment.

    kind: mlx-lm's name for what the segment was.
    """

    job: Job
    held: Held
    kind: str


class Batch:
    """Jobs that are decoded together. Each may enter and leave between two steps.

    stream: the device's stream that everything is computed in.
    """

    def __init__(self, model: Any, settings: Settings, stream: Any) -> None:
        self._generator = BatchGenerator(
            model,
            completion_batch_size=settings.decode_concurrency,
            prefill_batch_size=settings.prompt_concurrency,
            prefill_step_size=settings.prefill_step_size,
            max_kv_size=settings.max_kv_size,
            stream=stream,
        )
        self._jobs: dict[int, Job] = {}
        self._began: dict[int, int] = {}  # how many ids were held when a job entered
        self._ended: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs.values()

    @property
    def nbytes(self) -> int:
        """Bytes of the caches in use."""
        return int(self._generator.prompt_cache_nbytes)

    def enter(self, job: Job, held: Held) -> None:
        """Decode a job from here on; `held` is a prefix of its ids."""
        assert job.ids[: len(held.ids)] == held.ids
        assert len(held.ids) < len(job.ids)
        (uid,) = self._generator.insert_segments(
            segments=[_unread(job, len(held.ids))],
            max_tokens=[job.room],
            caches=[held.layers],
            all_tokens=[list(held.ids)],
            samplers=[job.batch_sampler()],
            logits_processors=[job.batch_processors()],
            stop_sequences=[make_stop_sequences(job.tokenizer, [])],
        )
        self._jobs[uid], self._began[uid] = job, len(held.ids)

    def step(self) -> list[Read]:
        """One id for every job whose prompt has been read, and more of the other prompts.

        Returns: caches that other requests can go on with.
        """
        read, emitted = self._generator.next()
        kept = []
        for response in read:
            job = self._jobs[response.uid]
            job.progress(*response.progress)
            kind = job.marks.pop(response.progress[0] + self._began[response.uid], None)
            if kind is not None and not response.end_of_prompt:
                kept.append(Read(job, self._extract(response.uid), kind))
        for response in emitted:
            job = self._jobs[response.uid]
            job.deliver(response.token, response.logprobs)
            if response.finish_reason is not None:
                assert job.ended is not None
                self._ended[response.uid] = Held(response.prompt_cache, response.all_tokens)
        return kept

    def leave(self, job: Job) -> Held:
        """Take a job out, with its cache."""
        (uid,) = [uid for uid, other in self._jobs.items() if other is job]
        del self._jobs[uid], self._began[uid]
        if uid in self._ended:
            return self._ended.pop(uid)
        layers, tokens = self._generator.remove([uid], return_prompt_caches=True)[uid]
        return Held(layers, list(tokens))

    def close(self) -> None:
        """Give back what the batches hold."""
        self._generator.close()

    def _extract(self, uid: int) -> Held:
        layers, tokens = self._generator.extract_cache([uid])[uid]
        return Held(layers, list(tokens))


def _unread(job: Job, held: int) -> list[list[TargetId]]:
    """The ids that are to be read, cut at the job's marks."""
    cuts = [held, *sorted(mark for mark in job.marks if held < mark < len(job.ids)), len(job.ids)]
    return [job.ids[begin:end] for begin, end in pairwise(cuts)]
