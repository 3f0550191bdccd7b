"""The draft model's session: besides single passes it drafts chains, which are waited for, and
lists probable next ids, as functions that wait, to be called once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession, top_k
from tokalign.runtime.rounds import Array
from tokalign.tables.alignment import NO_TOKEN, Intersection
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


class DraftModelSession(ModelSession[DraftId]):
    """A session of the draft model. Parameters and errors are those of `ModelSession`.

    Everything begins with a pass that brings the cache up to date with `ids`. Where the context
    would be full, nothing is drafted, drawn or listed.
    shared: which target id each draft id stands for; only ids that stand for one may be taken. None
    allows all of them.
    """

    _projection: ToTargetIds | None = None  # of the tables asked for last

    def tokens(self, ids: list[DraftId]) -> Array:
        """See `ModelCache.tokens`. An id that the model lacks, of a tokenizer that knows more, is
        read as its last one: guesses after it are worse, never wrong."""
        last = DraftId(self.vocabulary_size - 1)
        return super().tokens([min(token, last) for token in ids])

    def draft(
        self, ids: Sequence[DraftId], steps: int, shared: Intersection | None = None
    ) -> GreedyDraft:
        """Take the most probable next id `steps` (at least 1) times, with one pass each."""
        if not self._can_draft(ids, steps):
            return GreedyDraft([])
        mask = None if shared is None else self._project(shared).mask
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
        shared: Intersection | None = None,
    ) -> list[TargetId]:
        """Draw `steps` (at least 1) target ids, with one pass each. after: the target ids that they
        follow. shared: None if both models have the same ids."""
        if not self._can_draft(ids, steps):
            return []
        onto = None if shared is None else self._project(shared)

        def advance(token: Array) -> Array:
            if onto is None:
                return self.feed(token)
            return onto.logits(self.feed(onto.draft_ids(token)))

        row = self.logits(ids)
        first = row if onto is None else onto.logits(row)
        drawn = sampler.draw_chain(first, advance, steps, after=after)
        return cast("list[TargetId]", drawn.tolist())

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
        shared: Intersection | None = None,
        sampler: Sampling | None = None,
        positions: Sequence[int] = (),
    ) -> Callable[[], list[Shortlist]]:
        """List the top `count` ids after each id of a tree of draft ids, with one pass.

        Probabilities are those among the ids allowed. computed: as of `tree`; None lists what may
        follow `ids` too, first of all.
        sampler: how the target draws, at these positions of the rows: then the draft's ids for the
        target ids that it most probably draws are listed.
        """
        if not self._can_draft(ids, len(tree) + 1):
            lists = 1 + len(tree) if computed is None else len(tree) - computed
            return lambda: [Shortlist([], [], 0.0)] * lists
        rows = self.tree(ids, tree, computed).astype(mx.float32)
        onto = None if shared is None else self._project(shared)
        if sampler is None:
            rows = rows if onto is None else _masked(rows, onto.mask)
            logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        else:
            rows = rows if onto is None else onto.logits(rows)
            logprobs = sampler.expect(rows, positions)
        found, values = top_k(logprobs, count)
        if sampler is not None and onto is not None:
            found = onto.draft_ids(found)
        self.start(found, values)

        def read() -> list[Shortlist]:
            rows = zip(cast("list[list[DraftId]]", found.tolist()), values.tolist(), strict=True)
            return [Shortlist(ids, logprobs, 0.0) for ids, logprobs in rows]

        return read

    def _can_draft(self, ids: Sequence[DraftId], steps: int) -> bool:
        """Whether there is room for `steps` more ids, and a text to go on from: not if the target's
        prompt has only ids that stand for none."""
        return 0 < len(ids) <= min(self.context_length, self.rewindable) - steps

    def _project(self, shared: Intersection) -> ToTargetIds:
        """The tables on the device. A request asks for the same ones in every round."""
        if self._projection is None or self._projection.shared is not shared:
            self._projection = ToTargetIds(shared, self.vocabulary_size)
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


Ids = NDArray[np.int32]


class ToTargetIds:
    """A draft model's logits over target ids, computed on the device.

    shared: says which target id each draft id stands for. Where several draft ids stand for one
    target id, the draft goes on with the one that `target_to_draft` names, if it is one of them.
    draft_size: ids of the draft model. Further ids of its tokenizer stand for nothing here.
    """

    def __init__(self, shared: Intersection, draft_size: int) -> None:
        self.shared = shared
        self._to_target = shared.draft_to_target.copy()
        self._to_target[draft_size:] = NO_TOKEN
        self._preferred = np.where(
            shared.target_to_draft < draft_size, shared.target_to_draft, NO_TOKEN
        )

    @cached_property
    def mask(self) -> Array:
        """f32[draft vocabulary]: 0 where a draft id stands for a target id, else -inf."""
        known = self._to_target != NO_TOKEN
        return mx.array(np.where(known, 0, -np.inf).astype(np.float32))

    def logits(self, row: Array) -> Array:
        """f32[1, target vocabulary] of a row f[1, draft vocabulary or more]: probabilities of draft
        ids that stand for one target id add up; -inf where none does."""
        row = row[:, : len(self._to_target)].astype(mx.float32)
        projected = row[:, self._to_draft] + self._masked_out
        for drafts, targets in self._doubles:
            projected[:, targets] = mx.logaddexp(projected[:, targets], row[:, drafts])
        return projected

    def draft_ids(self, ids: Array) -> Array:
        """The draft ids to go on with after target ids."""
        return self._to_draft[ids]

    @cached_property
    def _chosen(self) -> Ids:
        """i32[target vocabulary]: the draft id for each target id, -1 for none."""
        to_target, preferred = self._to_target, self._preferred
        drafts = np.flatnonzero(to_target != NO_TOKEN).astype(np.int32)
        chosen = np.full(len(preferred), NO_TOKEN, dtype=np.int32)
        chosen[to_target[drafts]] = drafts
        agreed = (preferred != NO_TOKEN) & (to_target[preferred] == np.arange(len(preferred)))
        chosen[agreed] = preferred[agreed]
        return chosen

    @cached_property
    def _to_draft(self) -> Array:
        return mx.array(np.maximum(self._chosen, 0))

    @cached_property
    def _masked_out(self) -> Array:
        """f32[target vocabulary]: -inf for the target ids that no draft id stands for."""
        return mx.array(np.where(self._chosen == NO_TOKEN, -np.inf, 0).astype(np.float32))

    @cached_property
    def _doubles(self) -> list[tuple[Array, Array]]:
        """Draft ids that were not chosen, each with its target id, which another one stands for."""
        to_target = self._to_target
        drafts = np.flatnonzero(to_target != NO_TOKEN).astype(np.int32)
        others = drafts[self._chosen[to_target[drafts]] != drafts]
        return [(mx.array(d), mx.array(t)) for d, t in _layers(others, to_target[others])]


def _layers(drafts: Ids, targets: Ids) -> Iterator[tuple[Ids, Ids]]:
    """Pairs of ids in groups that name no target id twice."""
    while len(drafts):
        first = np.unique(targets, return_index=True)[1]
        yield drafts[first], targets[first]
        drafts, targets = np.delete(drafts, first), np.delete(targets, first)
