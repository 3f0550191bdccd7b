"""Timing single passes of loaded models, at one context length.

The code that is timed is the code that decodes. Passes form a chain, as in decoding: each one reads
the id that the last one chose. Passes that do not depend on each other overlap on the device, and
their times tell nothing about decoding (ml-explore/mlx issue 4265: 6.1 passes for 8 rows where a
chain takes 1.57).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, pairwise
from statistics import median
from time import perf_counter
from typing import Any

from tokalign.runtime.draft.trained import BeamDrafter
from tokalign.runtime.loop import TargetVerifier
from tokalign.runtime.mlx.beam_search import BeamShape, DrafterSession
from tokalign.runtime.mlx.dflash import DFlashDrafter, DFlashSession
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.rounds import Context, Proposal
from tokalign.runtime.translation.growth import CHILDREN, WIDTH
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

MOST_ROWS = 64

_FIRST_IDS, _DRAFT_PASSES = 8, 4
_FIRST_ROWS = 6
"""This many counts of rows are timed before the passes of the draft model."""

Pass = int | str | BeamShape
"""A pass over this many rows, a beam search, or a pass named "draft" (of a draft model or a block
drafter), "tree" (of the draft model where it grows one) or "ahead" (of plain decoding that runs
ahead)."""


class TimedPasses:
    """Models at one context length, up to which their caches stay filled.

    draft: as in `measure_curve`. length: of the context; `read_context` may lower it.
    """

    def __init__(self, target: Any, draft: Any, length: int) -> None:
        drafter = draft if isinstance(draft, RecurrentDrafter) else None
        block = draft if isinstance(draft, DFlashDrafter) else None
        model = draft if drafter is None and block is None else None
        taps = () if block is None else block.config.target_layer_ids
        session = TargetModelSession(target, keeps_states=drafter is not None, taps=taps)
        self._verifier = TargetVerifier(session, Sampling())
        self._draft = None if model is None else DraftModelSession(model)
        self._drafter = None if drafter is None else DrafterSession(drafter, session)
        self._block, self._target = block, session
        self.length = length
        self._chosen = TargetId(0)
        self._committed = Context([])
        size = max(2, vocabulary_size(target))
        draft_size = 2 if model is None else max(2, vocabulary_size(model))
        self._ids = [TargetId(i * 7919 % size) for i in range(length + MOST_ROWS)]
        self._draft_ids = [DraftId(i % draft_size) for i in self._ids]

    def read_context(self, limit: float) -> None:
        """Have the models read the context, or a part of it if all takes more than `limit` seconds.

        It is read in parts that double it: each takes about as long as all before it, or less.
        """
        began, whole = perf_counter(), self.length
        self.length = min(_FIRST_IDS, whole)
        while True:
            self.verify(1)
            if self._draft is not None:
                self.draft_pass()
            if self.length == whole or 2 * (perf_counter() - began) > limit:
                return
            self.length = min(2 * self.length, whole)

    def passes(
        self, rows: Sequence[int], searches: Sequence[BeamShape] = ()
    ) -> dict[Pass, Callable[[], float]]:
        """All that can be timed here, the most important first; each call gives seconds."""
        verified: dict[Pass, Callable[[], float]] = {m: partial(self.verify, m) for m in rows}
        timed = dict(islice(verified.items(), _FIRST_ROWS))
        if self._draft is not None:
            timed["draft"] = self.draft_pass
            if self._draft.can_branch:
                timed["tree"] = self.tree_pass
        if self._block is not None:
            timed["draft"] = self.block_pass
        timed["ahead"] = self.run_ahead
        timed |= verified
        if self._drafter is not None:
            timed |= {shape: partial(self.search, shape) for shape in searches}
        return timed

    def verify(self, rows: int) -> float:
        """A round that verifies `rows` rows, host and device one after the other.

        The last id of its context is the one that the round before chose.
        """
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

    def block_pass(self) -> float:
        """A pass of the block drafter, after one of the target that has just ended."""
        assert self._block is not None
        self.verify(1)
        # It reads the row of that pass alone. A session never goes back, so each has its own.
        session, began = DFlashSession(self._block, self._target), perf_counter()
        assert session.draft(self._committed.ids, 8), "the target has just read the context"
        return perf_counter() - began

    def tree_pass(self) -> float:
        """A pass in which the draft model goes on after the most texts that `Growth` chooses."""
        assert self._draft is not None
        roots = TokenTree(tuple(map(DraftId, range(WIDTH))), (-1,) * WIDTH, ("",) * WIDTH)
        ids, began = self._draft_ids[: self.length], perf_counter()
        self._draft.branch(ids, roots, None, CHILDREN)()
        return perf_counter() - began

    def search(self, shape: BeamShape) -> float:
        """A beam search of the recurrent drafter, until its tree is ready.

        It starts after a pass that has just ended.
        """
        assert self._drafter is not None
        self.verify(1)
        drafter, began = BeamDrafter(self._drafter, shape=shape), perf_counter()
        drafter.draft(self._committed, steps=shape.length, limit=shape.length)
        return perf_counter() - began
