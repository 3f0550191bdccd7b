"""Timing single passes of loaded models, at one context length.

The code that is timed is the code that decodes. Passes form a chain, as in decoding: each one reads
the id that the last one chose. Passes that do not depend on each other overlap on the device, and
their times tell nothing about decoding (ml-explore/mlx issue 4265: 6.1 passes for 8 rows where a
chain takes 1.57).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.loop import TargetVerifier
from tokalign.runtime.mlx.beam_search import DEFAULT_SHAPE
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.rounds import Context, Proposal
from tokalign.runtime.translation.growth import CHILDREN, WIDTH
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

MOST_ROWS = 64

_FIRST_IDS, _DRAFT_PASSES = 8, 4
_FIRST_ROWS = 6
"""This many counts of rows are timed before the passes of the draft model."""

Pass = int | str
"""A pass over this many rows, or one named "draft" (of a draft model or a block drafter, or a beam
search of one step), "tree" (of the draft model where it grows one, or a further step of a beam
search) or "ahead" (of plain decoding that runs ahead)."""


class TimedPasses:
    """Models at one context length, up to which their caches stay filled. ids: those that the head
    of what drafts is shortened to, if it is."""

    def __init__(
        self,
        target: Any,
        draft: Any,
        length: int,
        ids: NDArray[np.uint32] | None = None,
    ) -> None:
        self._trained = draft if isinstance(draft, TrainedDrafter) else None
        model = draft if self._trained is None else None
        watch = None if self._trained is None else self._trained.watch
        self._target = TargetModelSession(target, watch=watch)
        self._verifier = TargetVerifier(self._target, Sampling())
        self._draft = None if model is None else DraftModelSession(model)
        self.length = length
        self._chosen = TargetId(0)
        self._committed = Context([])
        self._head_ids, count = ids, length + MOST_ROWS
        self._ids = [*map(TargetId, _ids_of(target, ids if self._trained else None, count))]
        self._draft_ids = list[DraftId]()
        if self._draft is not None:
            if ids is not None:
                self._draft.shorten_head(ids)
            self._draft_ids = [*map(DraftId, _ids_of(model, ids, count))]

    def read_context(self, limit: float) -> None:
        """Have the models read the context, or as much as `limit` seconds allow."""
        began, whole = perf_counter(), self.length
        self.length = min(_FIRST_IDS, whole)
        while True:
            self.verify(1)
            if self._draft is not None:
                self.draft_pass()
            if self.length == whole or 2 * (perf_counter() - began) > limit:
                return
            self.length = min(2 * self.length, whole)

    def passes(self, rows: Sequence[int]) -> dict[Pass, Callable[[], float]]:
        """All that can be timed here, the most important first; each call gives seconds."""
        verified: dict[Pass, Callable[[], float]] = {m: partial(self.verify, m) for m in rows}
        timed = dict(islice(verified.items(), _FIRST_ROWS))
        if self._draft is not None:
            timed["draft"] = self.draft_pass
            if self._draft.can_branch:
                timed["tree"] = self.tree_pass
        if self._trained is not None:
            timed["draft"] = partial(self.search, 1)
            if not self._trained.in_one_pass:
                timed["tree"] = self.further_step
        timed["ahead"] = self.run_ahead
        return timed | verified

    def verify(self, rows: int) -> float:
        """A round that verifies `rows` rows, host and device in turn, after the last one's id."""
        context = Context([*self._ids[: self.length - 1], self._chosen])
        proposed = tuple(self._ids[self.length : self.length + rows - 1])
        proposal = Proposal(tree=TokenTree.chain(proposed, ""))
        began = perf_counter()
        verdict = self._verifier.verify(context, proposal)
        seconds = perf_counter() - began
        self._chosen = verdict.ids[-1]
        self._committed = Context([*context.ids, *verdict.ids])
        return seconds

    def run_ahead(self) -> float:
        """A round of plain decoding that runs ahead, verdict to verdict: the median of some."""
        context, ends = Context(self._ids[: self.length]), []
        for _ in range(6):
            context.extend(self._verifier.verify(context, Proposal(run_ahead=True)).ids)
            ends.append(perf_counter())
        self._verifier.verify(context, Proposal())  # fetches the pass that is still running
        return median(later - sooner for sooner, later in pairwise(ends[1:]))

    def draft_pass(self) -> float:
        """A pass of the draft model, averaged over several."""
        assert self._draft is not None
        ids, began = self._draft_ids[: self.length], perf_counter()
        self._draft.draft(ids, _DRAFT_PASSES)
        return (perf_counter() - began) / _DRAFT_PASSES

    def tree_pass(self) -> float:
        """A pass in which the draft model goes on after the most texts that `ModelTree` chooses."""
        assert self._draft is not None
        ids, roots = self._draft_ids[: self.length], self._draft_ids[self.length :][:WIDTH]
        self._draft.branch(ids, EMPTY_TREE, None, CHILDREN)()  # the pass before it
        began = perf_counter()
        tree = TokenTree(tuple(roots), (-1,) * len(roots), ("",) * len(roots))
        self._draft.branch(ids, tree, 0, CHILDREN)()
        return perf_counter() - began

    def further_step(self) -> float:
        """A step of a beam search after its first one: all of them cost the same."""
        first, steps = self.search(1), DEFAULT_SHAPE.length
        return max(0.0, self.search(steps) - first) / (steps - 1)

    def search(self, steps: int) -> float:
        """A draft of the trained drafter, until its tree is ready. It starts after a pass that has
        just ended; a session never goes back, so each draft has its own."""
        assert self._trained is not None
        self.verify(1)
        session = self._trained.short_session(self._target, self._head_ids)
        drafter = with_trained(session, sampler=None, length=steps)
        began = perf_counter()
        drafted = drafter.draft(self._committed, steps=steps, limit=steps)
        assert drafted.draft_passes, "the target has just read the context"
        return perf_counter() - began


def _ids_of(model: Any, among: NDArray[np.uint32] | None, count: int) -> Iterator[int]:
    """Ids of a model, of a shortened head's alone: with others, the whole head would be used."""
    known: Sequence[int] = range(max(2, vocabulary_size(model)))
    if among is not None and len(among):
        known = among.tolist()
    return (known[i * 7919 % len(known)] for i in range(count))
