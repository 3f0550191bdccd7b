"""Estimates that are learned while decoding: how long passes take, how often drafts are right.

Nothing here draws random numbers or reads a clock, so equal observations give equal estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from tokalign.cost.expected_gain import Costs

UNLIMITED = 1 << 30
"""A reach that limits nothing."""

_MEMORY = 32
"""Observations that a mean time looks back on."""

_QUICK_MEMORY = 8
"""The same where a time is shorter than expected."""

_OUTLIER = 2.0
"""One pass counts as at most this many times what is expected, or as the inverse share of it.

Other programs or the compilation of a kernel may have delayed it. A pass that really takes longer
is believed after a few observations.
"""

_ACCEPTANCES = 160
"""Trials that an acceptance looks back on."""

_LATELY, _CHANGE = 16.0, 2.5
"""Older trials are forgotten if the mean of the last 16 is 2.5 standard errors off."""

_START_WEIGHT = 4.0
"""Trials that the expectation of the first position is worth."""

_ALIKE = 12.0
"""Trials that the mean of all positions after the first is worth at each of them."""


class PassTimes:
    """The time of a pass by a count from 1 on: rows of the target, or passes of a draft.

    What is learned is the ratio of observed times to a prior. A count that was never seen has the
    ratio of its neighbours. So a curve of another machine, or one in another unit, is right once a
    few counts have been seen.
    Several threads may use one object: a value that is kept for speed is replaced as a whole.
    prior: times of 1, 2, ... in any unit.
    weight: how many observations the prior is worth; 0 where even its unit is unknown.
    """

    def __init__(self, prior: Sequence[float], *, weight: float) -> None:
        self._prior = Costs(rows=tuple(prior))
        self._ratios: dict[int, float] = {}
        self._weights: defaultdict[int, float] = defaultdict(lambda: weight)
        self._weight = weight
        self._prior_table = np.zeros(0)
        self._table: tuple[float, ...] = ()

    @property
    def is_calibrated(self) -> bool:
        """Whether times are in seconds: the prior is, or something has been observed."""
        return bool(self._weight or self._ratios)

    @property
    def reach(self) -> int:
        """The highest count to try; with an assumed prior, two more than the highest observed.

        The staircase of another machine may be far too low: one long draft has cost fifty passes.
        """
        return UNLIMITED if self._weight else max(self._ratios, default=1) + 2

    def observe(self, count: int, seconds: float) -> None:
        """A pass over `count` took `seconds`."""
        ratio = seconds / self._prior.verify(count)
        weight = self._weights[count]
        if self.is_calibrated:
            expected = self._ratio(count)
            if weight >= 1:
                ratio = min(max(ratio, expected / _OUTLIER), expected * _OUTLIER)
        else:
            expected = ratio
        # Something else may have made a pass slow, but never fast: fast ones are believed sooner.
        weight = min(weight + 1, _MEMORY if ratio >= expected else _QUICK_MEMORY)
        self._weights[count] = weight
        self._ratios[count] = expected + (ratio - expected) / weight
        self._table = ()

    def __call__(self, count: int) -> float:
        """The expected time of a pass over `count` (1 or more)."""
        return self.table(count)[count - 1]

    def table(self, most: int) -> tuple[float, ...]:
        """The expected times of 1, 2, ..., `most`."""
        table = self._table
        if len(table) < most:
            prior = self._prior_table
            if len(prior) < most:
                prior = np.array([self._prior.verify(n) for n in range(1, most + 1)])
                self._prior_table = prior
            ratios = self._ratios_of(np.arange(1, len(prior) + 1))
            self._table = table = tuple((prior * ratios).tolist())
        return table[:most]

    def _ratio(self, count: int) -> float:
        """The ratio of a count: observed, or interpolated between the nearest ones observed."""
        seen = self._ratios.get(count)
        return self._ratios_of([count]).item() if seen is None else seen

    def _ratios_of(self, counts: Sequence[int] | NDArray[np.int_]) -> NDArray[np.float64]:
        if not self._ratios:
            return np.ones(len(counts))
        known = sorted(self._ratios)
        return np.interp(counts, known, [self._ratios[count] for count in known])


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
        """Of a proposal of `proposed` ids the first `accepted` were right."""
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
