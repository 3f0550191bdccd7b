"""How requests are decoded: one alone by speculation, several plainly in mlx-lm's batches.

Between two rounds a request can leave for a batch with its cache, and come back with the batch's.
Its draft model's cache and what was learned about its text wait in its `Speculation` meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, cast

from mlx_lm.generate import BatchGenerator, StopSequences

from tokalign.errors import CacheError
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.contexts import NOTHING, Held
from tokalign.runtime.mlx.layers import forgets, remembered
from tokalign.runtime.mlx.pace import pace_of
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.rounds import Reading, Round, common_prefix
from tokalign.serve import Settings
from tokalign.serve.job import Job
from tokalign.serve.metrics import Metrics
from tokalign.tokenizer.vocabulary import TargetId


class Kept(NamedTuple):
    """A cache at a mark of a job's prompt. is_shared: see `Job.marks`; None until the next step."""

    job: Job
    held: Held
    is_shared: bool | None


def decoder_of(
    decoder: Decoder, job: Job, settings: Settings, *, drafts: bool, earlier: OutputStore | None
) -> Decoder:
    """The server's decoder with the options of one request.

    drafts: whether anything may be drafted. earlier: the earlier answers to the same API key, if
    they may be drafted from.
    """
    drafting, count = decoder.drafting, job.request.num_draft_tokens
    outputs: list[SuffixAutomaton] = []
    if earlier is not None:
        outputs.append(earlier.text)
        if drafting.logits is None:  # else they are remembered, and serve every API key
            drafting = replace(drafting, logits=earlier.logits)
    if not drafts:
        drafting = drafting.with_options(method="plain")
    elif count != settings.drafting.num_draft_tokens:
        drafting = drafting.with_options(num_draft_tokens=count)
    if job.prediction is not None:
        outputs.append(job.prediction)
    drafting = replace(drafting, outputs=tuple(outputs))
    return replace(decoder, drafting=drafting, sampler=job.sampler, grammar=job.constraint)


class Speculation:
    """The speculative decoding of one request.

    decoder: with the request's own options; its method is plain where nothing can be rewound.
    """

    def __init__(self, job: Job, decoder: Decoder, metrics: Metrics) -> None:
        self._job, self._decoder, self._metrics = job, decoder, metrics
        self._target = decoder.open_target()
        self._forgets = forgets(self._target.layers)
        draft, job.opening = list(job.opening.draft), job.opening._replace(draft=())
        self._draft = decoder.open_draft(draft if remembered(draft) else None)
        self._context, self._events = decoder.run(
            job.prompt,
            Limits(max_tokens=job.max_tokens, stop_ids=job.ends, stops=self._marks),
            target=self._target,
            draft=self._draft,
        )
        self._draft_steps = self._draft_reading()
        self._is_reading = True

    @property
    def _marks(self) -> Mapping[int, bool | None]:
        """Where a cache that can only be continued where it ends is kept."""
        return self._job.marks if self._forgets else {}

    def enter(self, job: Job, held: Held) -> None:
        """Go on with this cache, after the ids that the job has by now."""
        if held.layers:
            self._target.adopt(held.layers, cast("list[TargetId]", held.ids))
        self._context.extend(job.ids[len(self._context.ids) :])
        self._is_reading = True
        assert list(self._context.ids) == job.ids

    def step(self) -> list[Kept]:
        """Read a part of a long prompt, or decode one round and hand over its ids.

        Where the controller decides, the draft model is asked after the first tokens, so it reads
        the prompt after the first round.
        """
        job = self._job
        is_asked = job.passes or self._decoder.drafting.knowledge is None
        if is_asked and next(self._draft_steps, None) is not None:
            return []
        decoded = next(event for event in self._events if isinstance(event, Reading | Round))
        self._is_reading = isinstance(decoded, Reading)
        if isinstance(decoded, Reading):
            job.put(decoded)
            return self._at_mark(decoded.done)
        job.passes += 1
        job.plain_seconds = self._decoder.plain_seconds
        for index, (token, source) in enumerate(zip(decoded.emitted, decoded.sources, strict=True)):
            logprobs = None if decoded.logprobs is None else decoded.logprobs[index]
            if job.deliver(token, logprobs, source=source, outcome=decoded.outcome(index)):
                break
        self._metrics.observe(decoded)
        job.accepted += decoded.accepted
        job.rejected += len(decoded.tree) - decoded.accepted
        return []

    def leave(self, job: Job) -> Held:
        """The cache for its next user: it holds a prefix of the job's ids, without the last one."""
        kept = job.ids[:-1]
        if self._is_reading:
            held = cast("list[TargetId]", list(self._target.held))
            kept = kept[: common_prefix(kept, held)]
        return _handed_over(self._target, kept)

    def close(self) -> Sequence[Any]:
        """End for good. Returns: the draft model's cache."""
        if self._draft is None:
            return ()
        return _handed_over(self._draft, list(self._draft.held)).layers or ()

    def _draft_reading(self) -> Iterator[int]:
        """Steps in which the draft model reads the prompt, if its own form of it is known."""
        ids = self._job.prompt.draft
        if self._draft is not None and ids:
            yield from self._draft.reading(list(ids))

    def _at_mark(self, read: int) -> list[Kept]:
        """The cache after so many ids of the prompt, if it is to be kept there."""
        if read not in self._marks:
            return []
        ids = self._job.ids[:read]
        self._target.settle(ids)
        is_shared, layers = self._marks[read], self._target.layers
        held = Held(layers if is_shared is None else deepcopy(layers), list(ids))
        return [Kept(self._job, held, is_shared)]


def _handed_over(session: ModelSession[Any], ids: list[Any]) -> Held:
    """A session's cache, cut to these ids; nothing if it cannot be rewound to them."""
    try:
        session.settle(ids)
    except CacheError:
        return NOTHING
    return Held(list(session.layers), list(ids))


class Batch:
    """Jobs that are decoded together. Each may enter and leave between two steps.

    stream: the device's stream that everything is computed in.
    """

    def __init__(self, model: Any, settings: Settings, stream: Any) -> None:
        self._generator = BatchGenerator(
            model,
            completion_batch_size=settings.decode_concurrency,
            prefill_batch_size=settings.prompt_concurrency,
            prefill_step_size=settings.cache.prefill_step_size,
            max_kv_size=settings.cache.max_kv_size,
            stream=stream,
        )
        self._pace, self._most = pace_of(model), settings.cache.prefill_step_size
        self._jobs: dict[int, Job] = {}
        self._ended: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches in use."""
        return int(self._generator.prompt_cache_nbytes)

    def enter(self, job: Job, held: Held) -> None:
        """Decode a job from here on; `held` is a prefix of its ids."""
        count, length = len(held.ids), len(job.ids)
        assert job.ids[:count] == held.ids
        assert count < length
        cuts = [count, *sorted(mark for mark in job.marks if count < mark < length), length]
        (uid,) = self._generator.insert_segments(
            segments=[[job.ids[begin:end] for begin, end in pairwise(cuts)]],
            max_tokens=[job.room],
            caches=[held.layers],
            all_tokens=[list(held.ids)],
            samplers=[job.batch_sampler()],
            logits_processors=[job.batch_processors()],
            stop_sequences=[StopSequences([(end,) for end in job.ends])],
        )
        self._jobs[uid] = job

    def step(self) -> list[Kept]:
        """One id for every job whose prompt has been read, and a step of the other prompts.

        A job whose logits could not be processed has its `failure` then, and no further id.
        """
        prompts = sum(not job.completion_tokens for job in self._jobs.values()) or 1
        step = max(1, self._pace.step(self._most) // prompts)
        self._generator.prefill_step_size = step
        began = perf_counter()
        read, emitted = self._generator.next()
        if read and not any(response.end_of_segment for response in read):
            self._pace.learn(step * len(read), perf_counter() - began)
        kept: list[Kept] = []
        for response in read:
            job, (done, total) = self._jobs[response.uid], response.progress
            if total - done > 1:
                job.put(Reading(len(job.ids) - total + done, len(job.ids)))
            mark = len(job.ids) - total + done
            if mark in job.marks and response.end_of_segment and not response.end_of_prompt:
                layers, ids = self._generator.extract_cache([response.uid])[response.uid]
                kept.append(Kept(job, Held(layers, list(ids)), job.marks[mark]))
        for response in emitted:
            job = self._jobs[response.uid]
            job.passes += 1
            job.deliver(response.token, response.logprobs)
            if response.finish_reason is not None:
                assert job.ended is not None
                self._ended[response.uid] = Held(response.prompt_cache, response.all_tokens)
        return kept

    def leave(self, job: Job) -> Held:
        """Take a job out, with its cache."""
        (uid,) = [uid for uid, other in self._jobs.items() if other is job]
        del self._jobs[uid]
        if uid in self._ended:
            return self._ended.pop(uid)
        layers, tokens = self._generator.remove([uid], return_prompt_caches=True)[uid]
        return Held(layers, list(tokens))

    def close(self) -> None:
        """Give back what the batches hold."""
        self._generator.close()
