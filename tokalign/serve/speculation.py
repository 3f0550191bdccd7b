"""A request that is alone: rounds of drafting and verification, one at a time.

Between two rounds it can leave for a batch with its cache, and come back with the batch's. Its
draft model's cache and what was learned about its text wait here meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

from mlx_lm.models.cache import can_trim_prompt_cache

from tokalign.errors import CacheError
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.cache import common_prefix
from tokalign.runtime.mlx.held_ids import remember
from tokalign.runtime.mlx.session import ModelSession
from tokalign.serve.contexts import NOTHING, Held
from tokalign.serve.job import Job
from tokalign.serve.metrics import Metrics

if TYPE_CHECKING:
    from tokalign.tokenizer.vocabulary import TargetId


class Speculation:
    """The speculative decoding of one request.

    decoder: with the request's own options; its method is plain where nothing can be rewound.
    prompt: for both models. draft: a cache of the draft model to go on with.
    keep: is given caches of the target that are worth keeping, and what they end with.
    """

    def __init__(
        self,
        job: Job,
        decoder: Decoder,
        prompt: Prompt,
        draft: Held,
        *,
        metrics: Metrics,
        keep: Callable[[Held, str], None],
    ) -> None:
        self._job, self._metrics, self._keep = job, metrics, keep
        self._step = decoder.cache.prefill_step_size
        if draft.layers:
            remember(draft.layers, draft.ids)
        self._target = decoder.open_target()
        self._trims = can_trim_prompt_cache(self._target.layers)
        self._draft = decoder.open_draft(draft.layers)
        self._generation = Generation(
            decoder,
            prompt,
            max_tokens=job.max_tokens,
            target_session=self._target,
            draft_session=self._draft,
        )
        self._rounds = self._generation.by_round()
        self._reading = True

    def enter(self, held: Held) -> None:
        """Go on with this cache, after the ids that the job has by now."""
        if held.layers:
            self._target.adopt(held.layers, cast("list[TargetId]", held.ids))
        context = self._generation.context
        context.extend(self._job.ids[len(context.ids) :])
        self._reading = True
        assert list(context.ids) == self._job.ids

    def step(self) -> None:
        """Read a part of a long prompt, or decode one round and hand over its ids."""
        if self._reads_on():
            return
        job = self._job
        for piece in next(self._rounds):
            if job.deliver(piece.token, piece.logprobs):
                break
        one = self._generation.rounds[-1]
        self._metrics.observe(one)
        job.answer.accepted += one.accepted
        job.answer.rejected += len(one.tree) - one.accepted

    def leave(self) -> Held:
        """The cache for its next user: it holds a prefix of the job's ids, without the last one."""
        kept = self._job.ids[:-1]
        if self._reading:
            held = cast("list[TargetId]", list(self._target.held))
            kept = kept[: common_prefix(kept, held)]
        return _handed_over(self._target, kept)

    def close(self) -> Held:
        """End for good. Returns: the draft model's cache."""
        self._rounds.close()
        if self._draft is None:
            return NOTHING
        return _handed_over(self._draft, list(self._draft.held))

    def _reads_on(self) -> bool:
        """Read a part of the prompt if more than one is left, so that others need not wait.

        A cache that can only be continued where it ends is also kept at the prompt's marks.
        """
        if not self._reading:
            return False
        job, read = self._job, len(self._target.held)
        marks = [] if self._trims else [mark for mark in job.marks if mark > read]
        self._reading = bool(marks) or len(job.ids) - read > self._step + 1
        if self._reading:
            ids = job.ids[: min([read + self._step, *marks])]
            self._target.settle(ids)
            job.progress(len(ids), len(job.ids))
            if len(ids) in marks:
                self._keep(Held(deepcopy(self._target.layers), list(ids)), job.marks[len(ids)])
        return self._reading


def _handed_over(session: ModelSession[Any], ids: list[Any]) -> Held:
    """A session's cache, cut to these ids; nothing if it cannot be rewound to them."""
    try:
        session.settle(ids)
    except CacheError:
        return NOTHING
    return Held(list(session.layers), list(ids))
