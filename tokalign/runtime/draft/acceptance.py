"""How often drafted ids are right, by their position.

Nothing here draws random numbers, so equal observations give equal estimates.
"""

from __future__ import annotations

from math import sqrt

_ACCEPTANCES = 160
"""Trials that an acceptance looks back on."""

_LATELY, _CHANGE = 16.0, 3.0
"""Older trials are forgotten if the mean of the last 16 is 3 standard errors off. With 2.5,
chance did that within 3,000 drafts in half of the replays, and a model that paid was left."""

_START_WEIGHT = 4.0
"""Trials that the expectation of the first position is worth."""

_ALIKE = 12.0
"""Trials that the mean of all positions after the first is worth at each of them."""


class Acceptance:
    """How often the i-th id of a draft is right if the ids before it are, by position.

    A position with few trials is expected to be as good as all positions after the first together,
    and these as good as the first. So a few unlucky trials at one position do not keep drafts short
    for good.
    start: expected of the first position before any trial.
    """

    def __init__(self, *, start: float = 0.5) -> None:
        self._start = start
        self._positions: list[_Position] = []

    def observe(self, proposed: int, accepted: int) -> None:
        """Count a proposal of `proposed` ids whose first `accepted` were accepted."""
        for position in range(min(proposed, accepted + 1)):
            if position == len(self._positions):
                self._positions.append(_Position())
            self._positions[position].observe(position < accepted)

    def probabilities(self, count: int) -> list[float]:
        """Conditional probabilities of the first `count` positions."""
        first = self._estimate(0, self._start, _START_WEIGHT)
        trials = sum(position.trials for position in self._positions[1:])
        right = sum(position.right for position in self._positions[1:])
        further = (right + _START_WEIGHT * first) / (trials + _START_WEIGHT)
        return [first, *(self._estimate(i, further, _ALIKE) for i in range(1, count))][:count]

    def _estimate(self, position: int, expected: float, weight: float) -> float:
        if position >= len(self._positions):
            return expected
        seen = self._positions[position]
        return (seen.right + weight * expected) / (seen.trials + weight)


class _Position:
    """The latest trials of one position; fewer of them once the text has changed."""

    __slots__ = ("_lately", "right", "trials")

    def __init__(self) -> None:
        self.trials = self.right = 0.0
        self._lately = 0.0

    def observe(self, right: bool) -> None:
        fading = 1 - 1 / _ACCEPTANCES
        self.trials = self.trials * fading + 1
        self.right = self.right * fading + right
        rate = self.right / self.trials
        step = 1 / min(self.trials, _LATELY)
        self._lately += (right - self._lately) * step
        surprise = abs(self._lately - rate)
        if self.trials > _LATELY and surprise > _CHANGE * sqrt(rate * (1 - rate) / _LATELY):
            self.trials, self.right = _LATELY, _LATELY * self._lately
