"""What a block drafter (`dflash.py`) guesses in a round: ids by position, and after which ids."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn

from tokalign.runtime.mlx.sampling import Sampling, expected
from tokalign.runtime.mlx.session import TargetModelSession, top_k, wait
from tokalign.runtime.mlx.trained_drafter import DrafterSession
from tokalign.runtime.rounds import Array, Meanwhile, nothing
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.dflash import DFlashDrafter

Listed: TypeAlias = list[tuple[TargetId, float]]
"""Ids and their log-probabilities, the most probable first."""

_LINKED = 4
"""Ids of a position after which the next position is looked at."""


class Guess(NamedTuple):
    """What a pass guesses. positions: for each, whatever comes before. links: for each position but
    the first, the same after some of the ids before; empty for a drafter that cannot tell."""

    positions: list[Listed]
    links: list[dict[TargetId, Listed]]


class DFlashSession(DrafterSession):
    """A block drafter of one request. most: ids that it guesses."""

    def __init__(self, drafter: DFlashDrafter, target: TargetModelSession) -> None:
        super().__init__(drafter, target)
        self.most = drafter.config.guesses

    def draft(
        self,
        ids: Sequence[TargetId],
        listed: int,
        sampler: Sampling | None = None,
        meanwhile: Meanwhile = nothing,
    ) -> Guess:
        """For each position after `ids`, the most probable ids and their log-probabilities.

        sampler: predicts the choices of a target that samples (`Sampling.expect`); without one,
        probabilities are the drafter's own. meanwhile: is done before the host waits. Empty before
        the target's first pass.
        """
        if (taps := self._unread(ids)) is None:
            return Guess([], [])
        if self.head is not None:
            self.head.follow(ids)
        self.passes += 1
        hidden = self._drafter.hidden(ids[-1], taps, self._cache)
        logits = self._drafter.own_logits(hidden).astype(mx.float32)
        positions = range(len(ids), len(ids) + self.most)
        rows = expected(sampler, self._drafter.among_all(logits), positions)
        if not self._drafter.links:
            top = top_k(rows, min(listed, rows.shape[-1]))
            wait(ids, meanwhile, *top)
            return Guess(listed_rows(*top), [])
        return self._linked(hidden, logits, rows, ids, sampler, listed, meanwhile)

    def _linked(
        self,
        hidden: Array,
        logits: Array,
        rows: Array,
        ids: Sequence[TargetId],
        sampler: Sampling | None,
        listed: int,
        meanwhile: Meanwhile,
    ) -> Guess:
        """What a drafter with a head that looks at the id before guesses after `ids`.

        The next position is looked at after the chain of the most probable ids, and after some
        others that are probable whatever comes before. rows: f[positions, vocabulary],
        log-probabilities whatever comes before.
        """
        drafter, end = self._drafter, len(ids)
        chain, first = [mx.array([ids[-1]])], rows[:1]
        for place in range(self.most):
            at = slice(place, place + 1)
            linked = drafter.after(hidden[at], logits[at], chain[-1][None])[0]
            linked = expected(sampler, linked, [end + place])
            chain.append(linked.argmax(axis=-1))
            first = linked if place == 0 else first
        rows = mx.concatenate([first, rows[1:]])
        likely, _ = top_k(rows[:-1], min(_LINKED, rows.shape[-1]))
        before = mx.concatenate([mx.concatenate(chain[1:-1])[:, None], likely], axis=1)
        width = before.shape[1]
        each = [end + place for place in range(1, self.most) for _ in range(width)]
        linked = drafter.after(hidden[1:], logits[1:], before).flatten(0, 1)
        found, values = top_k(expected(sampler, linked, each), min(listed, rows.shape[-1]))
        confidence = drafter.confidence(hidden, mx.concatenate(chain[:-1]))
        if confidence is not None:
            sure = nn.log_sigmoid(confidence.astype(mx.float32))[:, None]
            rows, values = rows + sure, values + mx.repeat(sure[1:], width, axis=0)
        top = top_k(rows, min(listed, rows.shape[-1]))
        wait(ids, meanwhile, found, values, before, *top)
        after = iter(listed_rows(found, values))
        of_places = cast("list[list[TargetId]]", before.tolist())
        return Guess(listed_rows(*top), [{token: next(after) for token in of} for of in of_places])


def listed_rows(found: Array, values: Array) -> list[Listed]:
    """The ids i[n, m] and log-probabilities f[n, m] of n places, without what is impossible or no
    number."""
    rows = zip(cast("list[list[TargetId]]", found.tolist()), values.tolist(), strict=True)
    by_value = itemgetter(1)
    ranked = [sorted(zip(*row, strict=True), key=by_value, reverse=True) for row in rows]
    for row in ranked:
        while row and not row[-1][1] > -inf:
            row.pop()
    return ranked
