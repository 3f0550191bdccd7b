"""The draft model's session: besides single passes it drafts chains, which are waited for, and
lists probable next ids, as functions that wait, to be called once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession, top_k
from tokalign.runtime.mlx.short_head import ShortHead, frequent_rows
from tokalign.runtime.rounds import Array
from tokalign.tables.alignment import NO_TOKEN, FirstIds
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class GreedyDraft(NamedTuple):
    """The most probable ids, one per pass. masked_out: how many of them took the place of a
    likelier id that the target lacks."""

    ids: list[DraftId]
    masked_out: int = 0


class Shortlist(NamedTuple):
    """The most probable next ids at one position, unsorted, with their log-probabilities. kept:
    that of the id that follows in the text; 0 at the last position."""

    ids: list[DraftId]
    logprobs: list[float]
    kept: float


_REACH = 2
"""Positions that noise is computed for, by drawn id. Nine of ten ids that the target lacks are two
of its ids."""


class DraftModelSession(ModelSession[DraftId]):
    """A session of the draft model. Parameters and errors are those of `ModelSession`.

    Everything begins with a pass that brings the cache up to date with `ids`. Where the context
    would be full, nothing is drafted, drawn or listed.
    firsts: which target id each draft id begins with; only ids that have one may be taken. None
    allows all of them.
    """

    _projection: ToTargetIds | None = None  # of the tables asked for last
    _short: ShortHead | None = None

    def shorten_head(self, ids: NDArray[np.uint32]) -> None:
        """Leave out of its head what is neither among `ids` nor in the text (`short_head.py`)."""
        if self._short is None and (rows := frequent_rows(self.model, ids)) is not None:
            self._short = ShortHead(rows)
            self._short.read(self.held)
            self._twin = self._short.in_place_of_head(self.model)

    def tokens(self, ids: list[DraftId]) -> Array:
        """See `ModelCache.tokens`. An id that the model lacks, of a tokenizer that knows more, is
        read as its last one: guesses after it are worse, never wrong."""
        last = DraftId(self.vocabulary_size - 1)
        ids = [min(token, last) for token in ids]
        if self._short is not None:
            self._short.read(ids)
        return super().tokens(ids)

    def draft(
        self, ids: Sequence[DraftId], steps: int, firsts: FirstIds | None = None
    ) -> GreedyDraft:
        """Take the most probable next id `steps` (at least 1) times, with one pass each."""
        if not self._can_draft(ids, steps):
            return GreedyDraft([])
        mask = None if firsts is None else self._project(firsts).mask
        row, drafted, masked_out = self.logits(ids), list[Array](), list[Array]()
        while True:
            chosen = mx.argmax(row if mask is None else _masked(row, mask), axis=-1)
            drafted.append(chosen)
            if mask is not None:
                masked_out.append(mx.argmax(row, axis=-1) != chosen)
            if len(drafted) == steps:
                break
            row = self.feed(chosen)
        found = cast("list[DraftId]", mx.concatenate([*drafted, *masked_out]).tolist())
        return GreedyDraft(found[:steps], sum(found[steps:]))

    def draw(
        self,
        ids: Sequence[DraftId],
        steps: int,
        *,
        sampler: Sampling,
        after: Sequence[TargetId],
        firsts: FirstIds,
    ) -> list[DraftId]:
        """Draw `steps` (at least 1) ids, with one pass each. after: the target ids that they
        follow. What is drawn, with the target's noise, is the first target id of each; of the draft
        ids that begin with it the most probable one is taken."""
        if not self._can_draft(ids, steps):
            return []
        onto, row, drafted = self._project(firsts), self.logits(ids), list[Array]()

        def advance(chosen: Array) -> tuple[Array, Array]:
            nonlocal row
            drafted.append(onto.draft_ids(row, chosen))
            row = self.feed(drafted[-1])
            return onto.logits(row), onto.counts[drafted[-1]]

        drawn = sampler.draw_chain(
            onto.logits(row), advance, steps, after=after, reach=_REACH * steps
        )
        drafted.append(onto.draft_ids(row, drawn[-1:]))
        return cast("list[DraftId]", mx.concatenate(drafted).tolist())

    def start_shortlists(self, ids: Sequence[DraftId], back: int) -> Shortlists:
        """Start one pass for lists of what may follow `ids` without its last 0, ..., `back` ids."""
        if not self._can_draft(ids, 1):
            return Shortlists(None, self.tokens([]))
        rows = self.logits(ids, last=back + 1).astype(mx.float32)
        logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        self.start(logprobs)
        return Shortlists(logprobs, self.tokens(list(ids[len(ids) - back :])))

    def branch(
        self,
        ids: Sequence[DraftId],
        tree: TokenTree[DraftId],
        computed: int | None,
        count: int,
        firsts: FirstIds | None = None,
        sampler: Sampling | None = None,
        positions: Sequence[int] = (),
    ) -> Callable[[], list[Shortlist]]:
        """List the top `count` ids after each id of a tree of draft ids, with one pass.

        Probabilities are those among the ids allowed. computed: as of `tree`; None lists what may
        follow `ids` too, first of all.
        sampler: how the target draws, at these positions of the rows: then an id is as probable as
        that the target draws what it begins with. It needs `firsts`.
        """
        if not self._can_draft(ids, len(tree) + 1):
            lists = 1 + len(tree) if computed is None else len(tree) - computed
            return lambda: [Shortlist([], [], 0.0)] * lists
        rows = self.tree(ids, tree, computed).astype(mx.float32)
        onto = None if firsts is None else self._project(firsts)
        rows = rows if onto is None else _masked(rows, onto.mask)
        logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        if sampler is not None:
            assert onto is not None, "noise is that of target ids"
            logprobs = onto.expect(logprobs, sampler, positions)
        found, values = top_k(logprobs, count)
        self.start(found, values)

        def read() -> list[Shortlist]:
            rows = zip(cast("list[list[DraftId]]", found.tolist()), values.tolist(), strict=True)
            return [Shortlist(ids, logprobs, 0.0) for ids, logprobs in rows]

        return read

    def _can_draft(self, ids: Sequence[DraftId], steps: int) -> bool:
        """Whether there is room for `steps` more ids, and a text to go on from: not if the target's
        prompt has only ids that stand for none."""
        return 0 < len(ids) <= min(self.context_length, self.rewindable) - steps

    def _project(self, firsts: FirstIds) -> ToTargetIds:
        """The tables on the device. A request asks for the same ones in every round."""
        if self._projection is None or self._projection.firsts is not firsts:
            self._projection = ToTargetIds(firsts, self.vocabulary_size)
        return self._projection


class Shortlists:
    """A pass under way whose rows will be searched for their most probable ids.

    logprobs: f[1 + back, vocabulary]; the last row is the one with no id taken back. None where the
    context is full. tail: the ids u32[back] that are taken back, in their order in the text.
    """

    def __init__(self, logprobs: Array, tail: Array) -> None:
        self._logprobs, self._tail = logprobs, tail

    def among(
        self, allowed: Sequence[NDArray[np.uint32]], count: int
    ) -> Callable[[], list[Shortlist]]:
        """Have the top `count` ids of every position listed.

        allowed: the ids that may follow with 1, 2, ... of the last ids taken back, one array for
        each; with none taken back every id may follow.
        Returns: the list for none, one, two, ... ids taken back; no list if the context is full.
        """
        logprobs = self._logprobs
        if logprobs is None:
            return list
        known = logprobs.shape[-1]  # a tokenizer may have more ids than its model
        allowed = [ids[ids < known] for ids in allowed]
        best = [_best(logprobs[~j], ids, count) for j, ids in enumerate([None, *allowed])]
        kept = logprobs[mx.arange(len(self._tail)), self._tail]
        ids = mx.concatenate([listed for listed, _ in best])
        values = mx.concatenate([*(values for _, values in best), kept])
        mx.async_eval(ids, values)  # type: ignore[no-untyped-call]
        sizes = [values.shape[0] for _, values in best]
        return partial(_shortlists, ids, values, sizes)


def _shortlists(ids: Array, values: Array, sizes: list[int]) -> list[Shortlist]:
    """Cut up what the device has listed: log-probabilities of the lists, then of the tail."""
    all_ids, logprobs = cast("list[DraftId]", ids.tolist()), cast("list[float]", values.tolist())
    kept = [0.0, *logprobs[: len(all_ids) - 1 : -1]]
    ends = list(accumulate(sizes))
    return [
        Shortlist(all_ids[begin:end], logprobs[begin:end], of_next)
        for begin, end, of_next in zip([0, *ends], ends, kept, strict=False)
    ]


def _best(row: Array, among: NDArray[np.uint32] | None, count: int) -> tuple[Array, Array]:
    """The `count` most probable ids of a row f[vocabulary], or of some of them; unsorted."""
    ids = mx.arange(row.shape[0]) if among is None else mx.array(among)
    values = row if among is None else row[ids]
    if values.shape[0] <= count:
        return ids, values
    [chosen], [values] = top_k(values[None], count)
    return ids[chosen], values


def _masked(rows: Array, mask: Array) -> Array:
    size = min(rows.shape[-1], mask.shape[0])  # models are padded beyond their vocabulary
    return rows[:, :size] + mask[:size]


class ToTargetIds:
    """A draft model's probabilities over the first target ids of its tokens, on the device.

    draft_size: ids of the draft model. Further ids of its tokenizer stand for nothing here.
    counts: how many target ids each draft id stands for.
    """

    def __init__(self, firsts: FirstIds, draft_size: int) -> None:
        self.firsts = firsts
        first = firsts.first[:draft_size]
        known = first != NO_TOKEN
        self._size = int(first.max(initial=NO_TOKEN)) + 1
        # Those that have none are in a column of their own, which is cut off.
        self._first = mx.array(np.where(known, first, self._size))
        self.mask = mx.array(np.where(known, 0, -np.inf).astype(np.float32))
        self.counts = mx.array(firsts.counts)

    def logits(self, rows: Array) -> Array:
        """f32[rows, up to the last target id] of rows f[rows, draft vocabulary or more]: the
        probabilities of draft ids with the same first id add up; -inf where there is none."""
        rows = _masked(rows.astype(mx.float32), self.mask)
        highest = rows.max(axis=-1, keepdims=True)
        sums = mx.zeros((self._size + 1, rows.shape[0]))  # a column takes five times as long
        sums = sums.at[self._first[: rows.shape[1]]].add(mx.exp(rows - highest).T)
        return mx.log(sums[: self._size].T) + highest

    def expect(self, logprobs: Array, sampler: Sampling, positions: Sequence[int]) -> Array:
        """Log-probabilities f[rows, draft vocabulary] that the target draws what an id stands for:
        as `Sampling.expect` for its first target id, shared as the draft shares that.

        logprobs: -inf for ids that stand for none.
        """
        if not sampler.filters:  # the same without adding up
            columns = self._first[: logprobs.shape[1]], self._size + 1
            return sampler.expect(logprobs, positions, columns)
        own = self.logits(logprobs)
        gained = mx.where(own > -mx.inf, sampler.expect(own, positions) - own, -mx.inf)
        gained = mx.pad(gained, [(0, 0), (0, 1)], constant_values=-mx.inf)
        return logprobs + gained[:, self._first[: logprobs.shape[1]]]

    def draft_ids(self, row: Array, chosen: Array) -> Array:
        """The most probable ids i[1] of a row f[1, draft vocabulary or more] that begin with
        `chosen`, a target id i[1]."""
        row = row[:, : len(self._first)]
        begins = self._first[: row.shape[1]] == chosen
        return mx.argmax(mx.where(begins, row, -mx.inf), axis=-1)
