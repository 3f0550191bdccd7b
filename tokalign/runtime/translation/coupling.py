"""How far the noise of the target's choices decides what is drafted, learned where ids are drawn.

The noise of a choice is known before the target makes it, so a draft takes the id that is best
after the noise (`Sampling.expect`). How much the noise decides depends on how sure the target is,
and a small model is seldom as sure, above all where a text is copied: then it takes noise too
seriously. So the noise has a weight: the one with which the first ids of the latest rounds were
likeliest.

Example at T = 0.7: the draft gives `.` 0.5 and ` and` 0.1, whose noise is larger by 3. With the
weight 1 the draft takes ` and`, as 0.7 * 3 > log 5; with 0.5 it takes `.`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.vocabulary import TargetId

WEIGHTS = 1.0, 0.7, 0.5, 0.3, 0.1

_START = np.array([0.0, 0.5, 0.0, -1.0, -2.0])
"""Nats in favour of each weight before anything is emitted."""

_FADING = 1 - 1 / 64

_LEAST = -6.0
"""The least log-probability that counts: one surprise is not to decide for long."""

Floats = NDArray[np.float64]


class Coupling:
    """One object per request. best: the index of the weight for this round."""

    def __init__(self) -> None:
        self._nats = _START
        self._round: tuple[int, list[TargetId], Floats] | None = None

    @property
    def best(self) -> int:
        return int(np.argmax(self._nats))

    def expect(
        self, position: int, logprobs: Mapping[TargetId, float], noise: NDArray[np.floating]
    ) -> None:
        """Note what the draft says of the id at `position`. noise: f[vocabulary], that of the
        choice there times the temperature."""
        ids = list(logprobs)
        scores = np.array(list(logprobs.values())) + np.outer(WEIGHTS, noise[ids])
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        self._round = position, ids, scores

    def observe(self, ids: Sequence[TargetId]) -> None:
        """Learn which id was emitted at that position, if one was and it was among those."""
        if self._round is not None and len(ids) > self._round[0]:
            position, among, scores = self._round
            self._round = None
            if ids[position] in among:
                found = scores[:, among.index(ids[position])]
                self._nats = self._nats * _FADING + np.maximum(found, _LEAST)
