"""The draft model's session: besides single passes it drafts chains, which are waited for, and
lists probable next ids, as functions that wait, to be called once.

It reads all of a text only where that is short. Of a longer one it reads the beginning, on which
models lean whatever it says, and the end: a small model guesses the next ids by the latest ones,
and what stands further off is for a copy to find. So a long prompt costs it next to nothing, and a
text may be longer than its context (`lab/results/real-models.md`). Source: the beginning is that of
"Efficient Streaming Language Models with Attention Sinks" (Xiao et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession, top_k
from tokalign.runtime.mlx.short_head import ShortHead, frequent_rows
from tokalign.runtime.mlx.to_target_ids import ToTargetIds
from tokalign.runtime.rounds import Array
from tokalign.tables.alignment import FirstIds
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId


class DraftedIds(NamedTuple):
    """A chain of ids, one per pass. masked_out: how many of the most probable ones took the place
    of a likelier id that the target lacks."""

    ids: list[DraftId]
    masked_out: int = 0


class Shortlist(NamedTuple):
    """The most probable next ids at one position, unsorted, with their log-probabilities. kept:
    that of the id that follows in the text; 0 at the last position."""

    ids: list[DraftId]
    logprobs: list[float]
    kept: float


_WHOLE = 512
"""So many ids that it has not read are all read."""

_BEGINNING, _END = 4, 128
"""The ids that are read of more. Of prompts of 1,700 ids, chains of three have 2.81 tokens a pass
with all of them, 2.42, 2.25 and 2.27 with the last 1,024, 128 and 64."""

_MARGIN = 64
"""The room for guesses, below which a text is read anew from its end."""

_REACH = 2
"""Positions of noise by drawn id. Nine of ten ids that the target lacks are two of its ids."""


class DraftModelSession(ModelSession[DraftId]):
    """A session of the draft model. Parameters and errors are those of `ModelSession`.

    Everything begins with a pass that brings the cache up to date with `ids`, or with the part of
    them that is read. Where the context has no room for that, nothing is drafted, drawn or listed.
    firsts: which target id each draft id begins with; only ids that have one may be taken. None
    allows all of them.
    reads_all: whether it reads all of any text, as where its cache has to hold all ids.
    """

    reads_all = False

    _projection: ToTargetIds | None = None  # of the tables and columns asked for last
    _projected: Array | None = None
    _short: ShortHead | None = None
    _left_out = 0  # of the text's ids, after the first `_BEGINNING`

    @property
    def kept(self) -> list[DraftId]:
        """The ids with which another session may go on: none if some of their text are left out, as
        that one would not know which."""
        return [] if self._left_out else self.held

    def unread(self, ids: Sequence[DraftId]) -> int:
        """How many ids it has to read before it drafts after a text."""
        part = self._without(ids, self._to_leave_out(ids))
        return len(part) - self.shared_with(part)

    def to_read(self, unread: int) -> int:
        """How many ids it reads where a text has so many that it has not."""
        return unread if self._leaves_none_out or unread <= _WHOLE else _BEGINNING + _END

    @property
    def _leaves_none_out(self) -> bool:
        return self.reads_all or self.unknown_positions > 0  # which would have to go

    def _part(self, ids: Sequence[DraftId]) -> list[DraftId]:
        """What is read of a text."""
        self._left_out = self._to_leave_out(ids)
        return self._without(ids, self._left_out)

    def _to_leave_out(self, ids: Sequence[DraftId]) -> int:
        """How many ids of a text are not to be read."""
        left_out, part = self._left_out, self._without(ids, self._left_out)
        if self._leaves_none_out:
            return left_out
        shared, is_short = self.shared_with(part), len(part) < _BEGINNING + _END // 2
        if left_out and (is_short or shared <= _BEGINNING):  # it is another text
            left_out, part = 0, [*ids]
            shared = self.shared_with(part)
        # Once ids are left out, not for a few guesses: there has to be room for as many again.
        least = (_BEGINNING + _END) * (2 if left_out else 1)
        is_full = least < self._most - _MARGIN < len(part)
        is_long = is_full or len(part) - shared > _WHOLE
        return max(0, len(ids) - _BEGINNING - _END) if is_long else left_out

    def _without(self, ids: Sequence[DraftId], left_out: int) -> list[DraftId]:
        """A text without the ids that are left out."""
        return [*ids[:_BEGINNING], *ids[_BEGINNING + left_out :]]

    def adopt(self, layers: Sequence[Any], ids: Sequence[DraftId]) -> None:
        """See `ModelCache.adopt`."""
        super().adopt(layers, ids)
        if ids:
            self._left_out = 0

    def shorten_head(self, ids: NDArray[np.uint32]) -> None:
        """Leave out of its head what is neither among `ids` nor read (`short_head.py`)."""
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
        self,
        ids: Sequence[DraftId],
        steps: int,
        firsts: FirstIds | None = None,
        sampler: Sampling | None = None,
        first: int = 0,
    ) -> DraftedIds:
        """Take the most probable next id `steps` (at least 1) times, with one pass each. sampler:
        how the target draws, after `first` ids: then the first target id of each is drawn with its
        noise, and the most probable draft id taken that begins with it. It needs `firsts`."""
        if not self._can_draft(ids := self._part(ids), steps):
            return DraftedIds([])
        row, drafted, masked_out = self._computed(self.logits(ids)), list[Array](), list[Array]()
        onto = None if firsts is None else self._project(firsts, row)
        draw, position = None, mx.array([first])
        if sampler is not None:
            assert onto is not None, "noise is that of target ids"
            draw = sampler.drawing(first, _REACH * steps, onto.size)
        while True:
            if onto is None:
                chosen = mx.argmax(row, axis=-1)
            elif draw is None:
                chosen = mx.argmax(row + onto.mask, axis=-1)
                masked_out.append(mx.argmax(row, axis=-1) != chosen)
            else:
                chosen = onto.most_probable(row, draw(onto.logits(row), position))
            drafted.append(self._ids(chosen))
            if len(drafted) == steps:
                break
            row = self._computed(self.feed(drafted[-1]))
            if draw is not None and onto is not None:
                position = position + onto.counts[drafted[-1]]
        found = cast("list[DraftId]", mx.concatenate([*drafted, *masked_out]).tolist())
        return DraftedIds(found[:steps], sum(found[steps:]))

    def start_shortlists(
        self, ids: Sequence[DraftId], back: int, ahead: TokenTree[DraftId] = EMPTY_TREE
    ) -> Shortlists:
        """Start one pass for lists of what may follow `ids` without its last 0, ..., `back` ids.

        ahead: a tree after `ids` without its last `back` ids, which come first in it; the pass
        reads it, too.
        """
        if not self._can_draft(ids := self._part(ids), 1 + len(ahead)):
            return Shortlists(None, self.tokens([]), None)
        before = ids[: len(ids) - back]
        rows = self.tree(before, ahead) if ahead else self.logits(ids, last=back + 1)
        rows, further = rows[: back + 1].astype(mx.float32), rows[back + 1 :]
        logprobs = rows - mx.logsumexp(self._computed(rows), axis=-1, keepdims=True)
        self.start(logprobs)
        return Shortlists(logprobs, self.tokens(list(ids[len(before) :])), further)

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
        ids = self._part(ids) if computed is None else self._without(ids, self._left_out)
        if not self._can_draft(ids, len(tree) + 1):
            lists = 1 + len(tree) if computed is None else len(tree) - computed
            return lambda: [Shortlist([], [], 0.0)] * lists
        return self.listed(self.tree(ids, tree, computed), count, firsts, sampler, positions)

    def listed(
        self,
        rows: Array,
        count: int,
        firsts: FirstIds | None = None,
        sampler: Sampling | None = None,
        positions: Sequence[int] = (),
    ) -> Callable[[], list[Shortlist]]:
        """List the top `count` ids of each of a pass's rows f[n, vocabulary]; see `branch`."""
        rows = self._computed(rows)
        onto = None if firsts is None else self._project(firsts, rows)
        rows = rows if onto is None else rows + onto.mask
        logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        if sampler is not None:
            assert onto is not None, "noise is that of target ids"
            logprobs = onto.expect(logprobs, sampler, positions)
        places, values = top_k(logprobs, count)
        found = self._ids(places)
        self.start(found, values)

        def read() -> list[Shortlist]:
            rows = zip(cast("list[list[DraftId]]", found.tolist()), values.tolist(), strict=True)
            return [Shortlist(ids, logprobs, 0.0) for ids, logprobs in rows]

        return read

    def _can_draft(self, ids: Sequence[DraftId], steps: int) -> bool:
        """Whether there is room for `steps` more ids, and a text to go on from: not if the target's
        prompt has only ids that stand for none."""
        return 0 < len(ids) <= self._most - steps

    @property
    def _most(self) -> int:
        """How many ids its cache may hold."""
        return min(self.context_length, self.rewindable)

    @property
    def _columns(self) -> Array | None:
        """The ids whose logits the latest pass has computed; None for all."""
        return None if self._short is None else self._short.columns

    def _computed(self, rows: Array) -> Array:
        """f32[n, columns] of rows f[n, vocabulary]: `exp` of all ids of Gemma 3 takes a CPU 3.4 ms
        a row, where a pass takes 130."""
        columns = self._columns
        rows = rows if columns is None else mx.take(rows, columns, axis=-1)
        return rows.astype(mx.float32)

    def _ids(self, places: Array) -> Array:
        columns = self._columns
        return places if columns is None else columns[places]

    def _project(self, firsts: FirstIds, rows: Array) -> ToTargetIds:
        """The tables for these rows, on the device. A request asks for the same ones in most
        rounds."""
        known, columns = self._projection, self._columns
        if known is None or known.firsts is not firsts or self._projected is not columns:
            ids = np.arange(rows.shape[-1]) if columns is None else np.array(columns)
            known = self._projection = ToTargetIds(firsts, ids)
            self._projected = columns
        return known


class Shortlists:
    """A pass under way whose rows will be searched for their most probable ids.

    logprobs: f[1 + back, vocabulary]; the last row is the one with no id taken back. None where the
    context is full. tail: the ids u32[back] that are taken back, in their order in the text.
    ahead: the rows f[n, vocabulary] of what was read besides the text.
    """

    def __init__(self, logprobs: Array, tail: Array, ahead: Array) -> None:
        self._logprobs, self._tail, self.ahead = logprobs, tail, ahead

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
