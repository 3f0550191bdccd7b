"""Drawing a draft over target ids, with the draft model's probabilities of them.

Filters, processors and randomness then mean the same for both models. All of it stays on the
device: the host waits once for a whole chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.interfaces import DraftSampler, Session
from tokalign.runtime.proposal import Array
from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Ids = NDArray[np.int32]


class ToTargetIds:
    """A draft model's logits over target ids, computed on the device.

    shared: says which target id each draft id stands for. Where several draft ids stand for one
    target id, the draft goes on with the one that `target_to_draft` names, if it is one of them.
    draft_size: ids of the draft model. Its tokenizer may have more, which stand for nothing here:
    the device would read beyond the logits.
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
        """f32[1, target vocabulary] of a row f[1, draft vocabulary or more].

        Probabilities of draft ids that stand for the same target id add up; a target id that no
        draft id stands for has -inf.
        """
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


def draw(
    session: Session[DraftId],
    ids: Sequence[DraftId],
    steps: int,
    *,
    sampler: DraftSampler,
    after: Sequence[TargetId],
    onto: ToTargetIds | None = None,
) -> Array:
    """Start drawing `steps` (1 or more) target ids that follow the draft's `ids`, one pass each.

    after: the target ids that the drawn ones follow. onto: None if both models have the same ids.
    Returns: the drawn ids i[steps], lazy.
    """
    history = mx.array(list(after) if sampler.needs_history else [], dtype=mx.uint32)
    drawn: list[Array] = []
    row = session.logits(ids)
    while True:
        logits = row if onto is None else onto.logits(row)
        chosen = sampler.draw(logits, position=len(after) + len(drawn), ids=history)
        drawn.append(chosen)
        if len(drawn) == steps:
            break
        history = mx.concatenate([history, chosen])
        row = session.feed(chosen if onto is None else onto.draft_ids(chosen))
    all_drawn = mx.concatenate(drawn)
    session.start(all_drawn)
    return all_drawn
