"""Drafting by drawing: a draft model's choices made over target ids, as the target's are.

Filters, processors and randomness then mean the same for both models, and what an id was drawn
from is known exactly. All of it stays on the device: one wait for a whole chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.interfaces import Guesser, Session, Waiting
from tokalign.runtime.proposal import Array
from tokalign.tables.alignment import NO_TOKEN

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Target ids, and for each the law f[1, vocabulary] it was drawn from, None for none."""

    ids: list[int]
    distributions: list[Array | None]


class Projection:
    """A draft model's logits over target ids.

    to_target: i32[draft vocabulary], the target id that each draft id stands for, -1 for none.
    preferred: i32[target vocabulary], the draft id to go on with for each target id; where it
    stands for another one or is -1, any that stands for the target id is taken.
    """

    def __init__(self, to_target: Ids, preferred: Ids) -> None:
        self._size = len(to_target)
        drafts = np.flatnonzero(to_target != NO_TOKEN).astype(np.int32)
        to_draft = np.full(len(preferred), NO_TOKEN, dtype=np.int32)
        to_draft[to_target[drafts]] = drafts
        agreed = (preferred != NO_TOKEN) & (to_target[preferred] == np.arange(len(preferred)))
        to_draft[agreed] = preferred[agreed]
        self._to_draft = mx.array(np.maximum(to_draft, 0))
        self._barred = mx.array(np.where(to_draft == NO_TOKEN, -np.inf, 0).astype(np.float32))
        others = drafts[to_draft[to_target[drafts]] != drafts]
        self._doubles = [(mx.array(d), mx.array(t)) for d, t in _layers(others, to_target[others])]

    def logits(self, row: Array) -> Array:
        """f32[1, target vocabulary] of a row f[1, vocabulary or more]; -inf for what it lacks.

        Probabilities of draft ids that stand for the same target id add up.
        """
        row = row[:, : self._size].astype(mx.float32)
        projected = row[:, self._to_draft] + self._barred
        for drafts, targets in self._doubles:
            projected[:, targets] = mx.logaddexp(projected[:, targets], row[:, drafts])
        return projected

    def tokens(self, ids: Array) -> Array:
        """The draft ids to go on with."""
        return self._to_draft[ids]


def _layers(drafts: Ids, targets: Ids) -> Iterator[tuple[Ids, Ids]]:
    """Pairs of ids in groups that name no target id twice."""
    while len(drafts):
        first = np.unique(targets, return_index=True)[1]
        yield drafts[first], targets[first]
        drafts, targets = np.delete(drafts, first), np.delete(targets, first)


def draw(
    session: Session,
    ids: Sequence[int],
    steps: int,
    *,
    guesser: Guesser,
    behind: Sequence[int],
    onto: Projection | None = None,
) -> Waiting[Drawn]:
    """Draw `steps` (1 or more) target ids behind the draft's `ids`, one pass each.

    behind: the target ids that the drawn ones follow. onto: None where both speak the same ids.
    Nothing is drawn where the draft's context is full.
    """
    if len(ids) + steps > session.context_length:
        return lambda: Drawn([], [])
    history = mx.array(list(behind) if guesser.needs_history else [], dtype=mx.uint32)
    drawn: list[Array] = []
    distributions: list[Array | None] = []
    row = session.logits(ids)
    while True:
        logits = row if onto is None else onto.logits(row)
        chosen, law = guesser.guess(logits, position=len(behind) + len(drawn), ids=history)
        drawn.append(chosen)
        distributions.append(law)
        if len(drawn) == steps:
            break
        history = mx.concatenate([history, chosen])
        row = session.feed(chosen if onto is None else onto.tokens(chosen))
    ids_drawn = mx.concatenate(drawn)
    session.start(ids_drawn)
    return lambda: Drawn(session.read(ids_drawn), distributions)
