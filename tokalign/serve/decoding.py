"""One request from the first id of its prompt that is read to the cache that it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tokalign.errors import CacheError
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.contexts import NOTHING, Held
from tokalign.runtime.mlx.layers import forgets, remembered
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Round, common_prefix
from tokalign.serve.job import Job
from tokalign.serve.models import Loaded
from tokalign.serve.preparing import sampling_of
from tokalign.tokenizer.vocabulary import TargetId


class Kept(NamedTuple):
    """A cache at a mark of a job's prompt. is_shared: see `Job.marks`; None until the next step."""

    held: Held
    is_shared: bool | None


def request_of(job: Job, loaded: Loaded, earlier: OutputStore | None) -> Request:
    """What the decoder is given for a job. earlier: the earlier answers to the same API key, if
    they may be drafted from."""
    options, count = loaded.decoder.drafting.options, job.request.num_draft_tokens
    if options.method != "plain":
        options = replace(options, num_draft_tokens=count)
    predicted = () if job.prediction is None else (job.prediction,)
    silent = frozenset[TargetId]()
    if job.request.skips_specials:
        silent = job.form.silent_ids(job.tokenizer.vocabulary, job.request.stop_texts)
    return Request(
        job.prompt,
        max_tokens=job.max_tokens,
        sampler=sampling_of(loaded, job.request),
        grammar=job.constraint,
        stop=job.request.stop_texts,
        stop_ids=job.ends,
        silent=silent,
        options=options,
        outputs=predicted if earlier is None else (earlier.text, *predicted),
        logits=None if earlier is None else earlier.logits,
    )


class Answering:
    """Reads a prompt in steps, and hands over what rounds give.

    held: caches of the prompt's beginning. generation: others run its rounds. left: ids of the
    prompt that are not read yet.
    """

    def __init__(self, job: Job, decoder: Decoder, request: Request, held: Held) -> None:
        self._job = job
        self.target = decoder.open_target(options=request.options)
        self._forgets = forgets(self.target.layers)
        if held.layers:
            self.target.adopt(held.layers, cast("list[TargetId]", held.ids))
        draft = list(held.draft)
        self._draft = decoder.open_draft(
            draft if remembered(draft) else None, options=request.options
        )
        self.generation = Generation(
            decoder,
            request,
            target_session=self.target,
            draft_session=self._draft,
            stops=self._marks,
        )
        job.statistics = self.generation.statistics
        self.left = len(job.ids) - len(held.ids)
        # A generator of this class that is left before its end would hold this and its caches.
        self._steps = self.generation.decoding.reading()

    @property
    def _marks(self) -> Mapping[int, bool | None]:
        """Where a cache that can only be continued where it ends is kept."""
        return self._job.marks if self._forgets else {}

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(int(layer.nbytes) for layers in self.caches for layer in layers)

    @property
    def caches(self) -> tuple[list[Any], list[Any]]:
        """The target's, and the draft model's or an empty one."""
        return self.target.layers, [] if self._draft is None else self._draft.layers

    def read(self) -> list[Kept] | None:
        """Read a part of the prompt. Returns: what is to be kept; None if nothing was left."""
        if (read := next(self._steps, None)) is None:
            return None
        self._job.put(read)
        self.left = read.total - read.done
        return self._at_mark(read.done)

    def deliver(self, round_: Round) -> None:
        """Hand over the ids of a round."""
        job, pieces = self._job, self.generation.take(round_)
        job.stop_text = self.generation.stop_text
        for piece in pieces:
            job.deliver(piece, rest="" if piece.ends is None else self.generation.rest())

    def close(self) -> Held:
        """End. Returns: the caches, of all ids but the last one, as far as these were read; of the
        draft model's none that left some out."""
        ids = self._job.ids[:-1]
        if not self._job.statistics.rounds:
            ids = ids[: common_prefix(ids, cast("list[TargetId]", list(self.target.held)))]
        held = _handed_over(self.target, ids)
        if self._draft is None or not (own := self._draft.kept):
            return held
        return held._replace(draft=_handed_over(self._draft, list(own)).layers or ())

    def _at_mark(self, read: int) -> list[Kept]:
        """The cache after so many ids of the prompt, if it is to be kept there."""
        if read not in self._marks:
            return []
        ids = self._job.ids[:read]
        self.target.settle(ids)
        is_shared, layers = self._marks[read], self.target.layers
        return [Kept(Held(layers if is_shared is None else deepcopy(layers), list(ids)), is_shared)]


def _handed_over(session: ModelSession[Any], ids: list[Any]) -> Held:
    """A session's cache, cut to these ids; nothing if it cannot be rewound to them."""
    try:
        session.settle(ids)
    except CacheError:
        return NOTHING
    return Held(list(session.layers), list(ids))
