"""What rounds cost, given or learned while decoding.

A round that proposes n ids emits 1 + sum of P_i tokens on average, where P_i is the probability
that the i-th id and all ids before it are right. It costs C(n + 1) for the target's rows, besides
what drafting cost. Decoding maximizes the rate, tokens over time; n = 0 is plain decoding. C is a
measured staircase, so every n is looked at: the rate may fall and rise again.

Example: with P = (0.8, 0.64) and C = (1, 1.5, 1.5), one id has a rate of 1.8 / 1.5 = 1.2, two ids
of 2.44 / 1.5 = 1.63, and plain decoding of 1.
Nothing here reads a clock, so equal observations give equal estimates.
Source: the expected gain of speculative decoding (Leviathan et al., 2023, section 3.4), with a cost
per row instead of a constant one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

MAX_DRAFT = 16
"""The most passes of a draft model in a round."""

MAX_IDS = 32
"""The most ids proposed in a round. Chips with a matrix unit take up to 32 rows at one price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times in one unit: seconds, or passes of the target over one row.

    rows: C(1), C(2), ... of the target's pass; after its end the last step goes on.
    draft_pass: of the draft model.
    """

    rows: tuple[float, ...]
    draft_pass: float = 0.0

    def verify(self, rows: int) -> float:
        """Time of the target's pass over `rows` (1 or more) positions."""
        known = self.rows
        if rows <= len(known):
            return known[rows - 1]
        slope = max(0.0, known[-1] - known[-2]) if len(known) > 1 else 0.0
        return known[-1] + slope * (rows - len(known))

    def by_proposed(self, most: int) -> list[float]:
        """Times of rounds that propose 0, 1, ..., `most` ids."""
        return [self.verify(1 + n) for n in range(1 + most)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft and the rate that this is expected to give.

    length: ids to propose, or passes of a draft model. rate: tokens per unit of time.
    tokens: expected of the round, the target's own included.
    """

    length: int
    rate: float
    tokens: float = 1.0


_MEMORY = 32
"""Observations that a mean time looks back on. It is the same for long and short times: a mean that
follows short ones sooner makes the counts that are seen most often look cheap."""

_OUTLIER = 2.0
"""One pass counts as at most this many times what is expected, or as the inverse share of it: other
programs or the compilation of a kernel may have delayed it."""

HICCUP = 2.0
"""A round, and the drafting in it, count as at most this many times what was expected: other
programs may delay them, and a stopped process goes on later."""

_FADING = 0.99
"""What is left, one round later, of what a single observation said against a count."""

_DOUBTED = 0
"""The weight of what the next observation replaces."""


class PassTimes:
    """The time of a pass by a count from 1 on: rows of the target, or passes of a draft.

    What is learned is the ratio of observed times to a prior. A count that was never seen has the
    ratio of its neighbours. So a curve of another machine, or one in another unit, is right once a
    few counts have been seen. A count that seems dear is not used, so that nothing would show it
    cheap again. While it is not seen, it fades to the ratio of a pass over 1, the more slowly the
    more often it was observed, and is tried again in the end.
    Several threads may use one object: a value that is kept for speed is replaced as a whole.
    prior: times of 1, 2, ... in any unit.
    weight: how many observations the prior is worth; 0 where even its unit is unknown.
    """

    def __init__(self, prior: Sequence[float], *, weight: float) -> None:
        self._prior = Costs(rows=tuple(prior))
        self._weight = weight
        self._ratios: dict[int, float] = {}
        self._weights: dict[int, float] = {}
        self._seen: dict[int, int] = {}  # the round of the latest observation
        self._rounds = 0
        self._table: tuple[float, ...] = ()

    @property
    def is_calibrated(self) -> bool:
        """Whether times are in the unit of observations, seconds or passes of the target: the prior
        is, or something has been observed."""
        return bool(self._weight or self._ratios)

    @property
    def known(self) -> int:
        """The highest count that was observed or measured."""
        return max(len(self._prior.rows) if self._weight else 1, max(self._ratios, default=1))

    @property
    def reach(self) -> int:
        """The highest count to try: two more than the highest known. What lies beyond may be
        assumed far too low: one long draft has cost fifty passes."""
        return self.known + 2

    def observe(self, count: int, time: float) -> None:
        ratio = time / self._prior.verify(count)
        if self.is_calibrated and self._weights.get(count) != _DOUBTED:
            expected = self._ratio(count)
            ratio = min(max(ratio, expected / _OUTLIER), expected * _OUTLIER)
        else:
            expected = ratio
        weight = min(self._weights.get(count, self._weight) + 1, _MEMORY)
        self._weights[count], self._seen[count] = weight, self._rounds
        self._ratios[count] = expected + (ratio - expected) / weight
        self._table = ()

    def doubt(self) -> None:
        """Forget what was observed, that of 1 when it is observed again."""
        if self._ratios:
            self._ratios, self._weights = {1: self._ratio(1)}, {1: _DOUBTED}

    def forget(self) -> None:
        self._ratios, self._weights, self._table = {}, {}, ()

    def count_round(self) -> None:
        """A round is over, whether or not a pass of it was observed."""
        self._rounds += 1
        self._table = ()

    def __call__(self, count: int) -> float:
        """The expected time of a pass over `count` (1 or more)."""
        return self.table(count)[count - 1]

    def table(self, most: int) -> tuple[float, ...]:
        """The expected times of 1, 2, ..., `most`."""
        table = self._table
        if len(table) < most:
            counts = range(1, most + 1)
            ratios = _interpolated(self._believed(), counts)
            table = tuple((np.array([*map(self._prior.verify, counts)]) * ratios).tolist())
            self._table = table
        return table[:most]

    def _ratio(self, count: int) -> float:
        """The ratio of a count: observed, or interpolated between the nearest ones observed."""
        seen = self._ratios.get(count)
        return _interpolated(self._ratios, [count]).item() if seen is None else seen

    def _believed(self) -> Mapping[int, float]:
        """The ratios of the counts that were observed, faded where that is long ago."""
        ratios, usual = self._ratios.copy(), self._ratio(1)
        for count, ratio in [*ratios.items()]:
            if ratio > usual and (age := self._rounds - self._seen[count]):
                left = _FADING ** (age / self._weights.get(count, 1))  # another thread may doubt it
                ratios[count] = usual + (ratio - usual) * left
        return ratios


def _interpolated(ratios: Mapping[int, float], counts: Sequence[int]) -> NDArray[np.float64]:
    if not ratios:
        return np.ones(len(counts))
    known = sorted(ratios)
    return np.interp(counts, known, [ratios[count] for count in known])


_PLAIN_WEIGHT = 1
"""Observations that the expected time of plain decoding is worth on a calibrated machine."""

_LEAST_PLAIN = 0.25
"""Plain decoding takes at least this share of a round of one row that does not run ahead. A reader
that takes long may hide nearly all of its passes for a while."""

_SAME = 0.05
"""Two shares of a round that differ by this much are the same."""

BARE, KEEPING = 1, 2
"""Kinds of plain rounds that run ahead: one that does nothing else, and one that keeps the target's
top-k logits for later drafts."""


class LearnedCosts:
    """Times of rounds on one machine for one target, learned from what passes took.

    rows: time of a round by the rows it verifies, without drafting, host and device in turn.
    host: seconds of a round that running ahead should hide.
    ahead: time of a plain round that runs ahead, `BARE` or `KEEPING`.
    runs_ahead: whether a pass begins before its round where nothing will be proposed.
    """

    runs_ahead = True

    def __init__(self, rows: PassTimes, *, host: float = 0.0) -> None:
        self.rows = rows
        # An assumed curve has no seconds, so the first measurement replaces its time at once.
        self._is_assumed = not (known := rows.is_calibrated)
        expected = max(rows(1) - host, rows(1) / 2) if known else 1.0
        self.ahead = PassTimes([expected] * KEEPING, weight=_PLAIN_WEIGHT if known else 0)
        self._rereading, self._doubted = 0.0, -1.0

    @property
    def plain(self) -> float:
        """Time per token of plain decoding, host and device overlapping: at most that of a round of
        one row in which they take turns."""
        return min(max(self.ahead(BARE), _LEAST_PLAIN * self.rows(1)), self.rows(1))

    @property
    def keeping(self) -> float:
        """Time of a plain round that runs ahead and keeps the target's top-k logits."""
        return max(self.plain, self.ahead(KEEPING))

    def observe_ahead(self, seconds: float, *, is_bare: bool) -> None:
        self.ahead.observe(BARE if is_bare else KEEPING, seconds)

    @property
    def is_doubtful(self) -> bool:
        """Whether the unit of an assumed curve was taken from times that cannot be: running ahead
        hides at most half of a round of one row, and more rows hardly take less. Other programs
        delayed a round, or a pass ended while the host was delayed. The same again is believed."""
        if not self._is_assumed:
            return False
        share = self._share_of_one_row
        return not self.rows.is_calibrated or (share < 0.5 and abs(share - self._doubted) > _SAME)

    @property
    def _share_of_one_row(self) -> float:
        """The least time of a round as a share of that of one row."""
        return min(self.ahead(BARE), *self.rows.table(self.rows.known)) / self.rows(1)

    def doubt_plain(self) -> None:
        """Forget what rounds took, that of plain ones when they are timed again."""
        self._doubted = self._share_of_one_row
        self.ahead.doubt()
        self.rows.doubt()

    @property
    def overlap(self) -> float:
        """What a plain round that does not run ahead loses by that, in plain passes."""
        return self.rows(1) / self.plain - 1

    def pays(self, plan: Plan) -> bool:
        """Whether a round is expected to give more tokens per time than plain decoding."""
        return plan.rate * self.plain > 1.0

    def by_proposed(self, most: int, *, hopeful: bool = False) -> tuple[float, ...]:
        """Times of rounds that propose 0, 1, ..., `most` ids and do not run ahead.

        What will have to be read again because of them is included: the target has recurrent
        states, which go back to where they were when an id is rejected. hopeful: take rows beyond
        those that were ever observed or measured to cost nothing, so that they are tried.
        """
        times = self.rows.table(1 + most + ceil(self._rereading))
        if self._rereading:
            further = np.arange(1, 1 + most) + self._rereading
            times = times[0], *np.interp(further, np.arange(len(times)), times).tolist()
        known = self.rows.known
        if hopeful and known <= most:
            times = (*times[:known], *[times[known - 1]] * (1 + most - known))
        return times

    def observe_rereading(self, rows: int) -> None:
        """The round after one with a proposal read this many rows again."""
        self._rereading += (rows - self._rereading) / _MEMORY
