"""What passes cost, given or learned while decoding, and what a proposal is worth.

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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.cost import CostCurve
from tokalign.tables.token_tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times in one unit: seconds, or passes of the target over one row.

    rows: C(1), C(2), ... of the target's pass; after its end the last step goes on.
    draft_pass: of the draft model. host: the rest of a round that has a proposal.
    tree_pass: of the draft model where it grows a tree; None: the same as `draft_pass`.
    """

    rows: tuple[float, ...]
    draft_pass: float = 0.0
    host: float = 0.0
    tree_pass: float | None = None

    def verify(self, rows: int) -> float:
        """Time of the target's pass over `rows` (1 or more) positions."""
        known = self.rows
        if rows <= len(known):
            return known[rows - 1]
        slope = max(0.0, known[-1] - known[-2]) if len(known) > 1 else 0.0
        return known[-1] + slope * (rows - len(known))

    def drafting(self, passes: int, *, tree: bool) -> float:
        """Time of a draft of so many passes of the draft model. tree: whether it grew a tree."""
        return passes * (self.tree_pass if tree and self.tree_pass is not None else self.draft_pass)

    def round(self, proposed: int, passes: int = 0, *, tree: bool = False) -> float:
        """Time of a round that verifies so many proposed ids, found in so many draft passes.

        tree: as of `drafting`. A round without a proposal is one of plain decoding, which runs
        ahead.
        """
        host = self.host if proposed else 0.0
        return self.verify(1 + proposed) + host + self.drafting(passes, tree=tree)

    def of(self, tree: TokenTree[Any], passes: int, *, verified: int | None = None) -> float:
        """Time of a round with a tree that so many passes of the draft model have found.

        verified: how many of its ids the target reads; None for all of them.
        """
        proposed = len(tree) if verified is None else verified
        return self.round(proposed, passes, tree=tree.chain_length < len(tree))

    def expected_verify(self, rows: float) -> float:
        """Expected time where `rows` (1 or more) is an expected number of positions."""
        whole = int(rows)
        below = self.verify(whole)
        return below + (rows - whole) * (self.verify(whole + 1) - below)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft and the rate that this is expected to give.

    length: ids to propose, or passes of a draft model. rate: tokens per unit of time.
    tokens: expected of the round, the target's own included.
    """

    length: int
    rate: float
    tokens: float = 1.0


def costs_at(curve: CostCurve, context: int, *, assumed_draft: float = 0.0) -> Costs:
    """What rounds cost after `context` ids, in passes of plain decoding.

    assumed_draft: of a pass of the draft model, where its time is not known.

    C(m) is of a round in which host and device take turns, so it includes the host's work,
    which is named apart here.
    """
    times, plain = curve.rows_at(context), curve.plain_at(context)
    host = times[0] - plain
    draft, tree = curve.draft_pass_at(context), curve.tree_pass_at(context)
    return Costs(
        rows=tuple((time - host) / plain for time in times),
        draft_pass=assumed_draft if draft is None else draft / plain,
        host=host / plain,
        tree_pass=None if tree is None else tree / plain,
    )


_MEMORY = 32
"""Observations that a mean time looks back on."""

_QUICK_MEMORY = 8
"""The same where a time is shorter than expected."""

_OUTLIER = 2.0
"""One pass counts as at most this many times what is expected, or as the inverse share of it.

Other programs or the compilation of a kernel may have delayed it. A pass that really takes longer
is believed after a few observations.
"""

_PLAIN_WEIGHT = 4
"""Observations that the expected time of plain decoding is worth on a calibrated machine."""

_SHORT = 1 / 16
"""A pause of at most this share of a round is not looked at; handing out events takes as long."""

_FADING = 0.99
"""What is left, one round later, of what a single observation said against a count."""


class PassTimes:
    """The time of a pass by a count from 1 on: rows of the target, or passes of a draft.

    What is learned is the ratio of observed times to a prior. A count that was never seen has the
    ratio of its neighbours. So a curve of another machine, or one in another unit, is right once a
    few counts have been seen.
    A count that seems dear is left alone, and nothing would show that it is not: a few slow passes
    may have been another program's fault. So while it is not seen, it fades to the ratio of a pass
    over 1, the more slowly the more often it was observed, and is tried again in the end.
    Several threads may use one object: a value that is kept for speed is replaced as a whole.
    prior: times of 1, 2, ... in any unit.
    weight: how many observations the prior is worth; 0 where even its unit is unknown.
    """

    def __init__(self, prior: Sequence[float], *, weight: float) -> None:
        self._prior = Costs(rows=tuple(prior))
        self._ratios: dict[int, float] = {}
        self._weights: defaultdict[int, float] = defaultdict(lambda: weight)
        self._weight = weight
        self._seen: dict[int, int] = {}
        self._rounds = 0
        self._prior_table = np.zeros(0)
        self._table: tuple[float, ...] = ()

    @property
    def is_calibrated(self) -> bool:
        """Whether times are in seconds: the prior is, or something has been observed."""
        return bool(self._weight or self._ratios)

    @property
    def known(self) -> int:
        """The highest count that was observed or measured."""
        return max(len(self._prior.rows) if self._weight else 1, max(self._ratios, default=1))

    @property
    def reach(self) -> int:
        """The highest count to try: two more than the highest known.

        What lies beyond is assumed, and may be far too low: one long draft has cost fifty passes.
        """
        return self.known + 2

    def observe(self, count: int, seconds: float) -> None:
        ratio = seconds / self._prior.verify(count)
        weight = self._weights[count]
        if self.is_calibrated:
            expected = self._ratio(count)
            ratio = min(max(ratio, expected / _OUTLIER), expected * _OUTLIER)
        else:
            expected = ratio
        # Something else may have made a pass slow, but never fast: fast ones are believed sooner.
        weight = min(weight + 1, _MEMORY if ratio >= expected else _QUICK_MEMORY)
        self._weights[count] = weight
        self._seen[count] = self._rounds
        self._ratios[count] = expected + (ratio - expected) / weight
        self._table = ()

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
            prior = self._prior_table
            if len(prior) < most:
                prior = np.array([self._prior.verify(n) for n in range(1, most + 1)])
                self._prior_table = prior
            ratios = _interpolated(self._believed(), np.arange(1, len(prior) + 1))
            self._table = table = tuple((prior * ratios).tolist())
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
                left = _FADING ** (age / self._weights[count])
                ratios[count] = usual + (ratio - usual) * left
        return ratios


def _interpolated(
    ratios: Mapping[int, float], counts: Sequence[int] | NDArray[np.int_]
) -> NDArray[np.float64]:
    if not ratios:
        return np.ones(len(counts))
    known = sorted(ratios)
    return np.interp(counts, known, [ratios[count] for count in known])


def is_long(pause: float, seconds: float) -> bool:
    """Whether a pause before a round of so many seconds may have hidden much of its pass."""
    return pause > _SHORT * seconds


class LearnedCosts:
    """Times of rounds on one machine for one pair of models.

    rows: time of a round by the rows it verifies, without drafting, host and device in turn.
    drafts: time of a draft by its passes; None without a draft model. Until `drafts.is_calibrated`
    they count in passes of the target. host: seconds of a round that running ahead should hide.
    plain_rounds: how many rounds of plain decoding have been timed.
    rereading: mean number of rows that a proposal makes a later round read again. It is 0 unless
    the target has recurrent states, which go back to where they were when an id is rejected.
    """

    def __init__(
        self, rows: PassTimes, drafts: PassTimes | None = None, *, host: float = 0.0
    ) -> None:
        self.rows, self.drafts = rows, drafts
        self.plain_rounds = 0
        self.rereading = 0.0
        self._host = host
        # An assumed curve has no seconds, so the first measurement replaces its time at once.
        known = rows.is_calibrated
        prior = self._expected_plain() if known else 1.0
        self._plain_times = PassTimes([prior], weight=_PLAIN_WEIGHT if known else 0)

    @property
    def plain(self) -> float:
        """Time per token of plain decoding, host and device overlapping.

        It takes no longer than a round of one row in which they take turns. Such rounds are timed
        far more often, so where the machine has become faster they tell first.
        """
        timed = self.plain_is_known
        return min(self._plain_times(1) if timed else self._expected_plain(), self.rows(1))

    @property
    def plain_is_known(self) -> bool:
        """Whether `plain` is in seconds and was measured on this machine."""
        return self._plain_times.is_calibrated

    @property
    def is_timed(self) -> bool:
        """Whether all times are in seconds."""
        return self.rows.is_calibrated

    @property
    def overlap(self) -> float:
        """What a plain round that does not run ahead loses by that, in plain passes."""
        return self.rows(1) / self.plain - 1

    def verification(self, most: int, *, hopeful: bool = False) -> Costs:
        """Costs of verifying up to `most` ids in a round that does not run ahead.

        What will have to be read again because of them is included. hopeful: take rows beyond those
        that were ever observed or measured to cost nothing, so that they are tried.
        """
        times = self._rows(most + 1)
        if hopeful and self.rows.known < len(times):
            times = (*times[: self.rows.known], times[self.rows.known - 1])
        return Costs(rows=times)

    def draft_times(self, most: int) -> Sequence[float]:
        """Times of drafts of 1, 2, ..., `most` passes."""
        assert self.drafts is not None, "there is no draft model"
        times = self.drafts.table(most)
        return times if self.drafts.is_calibrated else [time * self.plain for time in times]

    def observe_round(self, rows: int, seconds: float) -> None:
        """A round that did not run ahead verified `rows` rows in `seconds`, without drafting."""
        self.rows.observe(rows, seconds)

    def observe_rereading(self, rows: int) -> None:
        """The round after one with a proposal read so many rows again."""
        self.rereading += (rows - self.rereading) / _MEMORY

    def observe_draft(self, passes: int, seconds: float) -> None:
        assert self.drafts is not None, "there is no draft model"
        self.drafts.observe(passes, seconds)

    def observe_plain(self, seconds: float, pause: float = 0.0) -> None:
        """One token of plain decoding that ran ahead took `seconds`, after a pause.

        Its pass may have been computed during the pause, wholly or in part. Then it took something
        between `seconds` and both together, and a time in between is believed as before.
        """
        self.plain_rounds += 1
        if is_long(pause, seconds):
            if not self.plain_is_known:
                return
            believed = self._plain_times(1)
            if seconds <= believed <= seconds + pause:
                return
            seconds = min(max(seconds, believed), seconds + pause)
        self._plain_times.observe(1, seconds)
        if not self.rows.is_calibrated:
            self.rows.observe(1, seconds + self._host)

    def _rows(self, most: int) -> tuple[float, ...]:
        """Times of 1, 2, ..., `most` rows, of which all but the first are proposed."""
        if not self.rereading:
            return self.rows.table(most)
        times = self.rows.table(most + ceil(self.rereading))
        further = np.arange(1, most) + self.rereading
        return times[0], *np.interp(further, np.arange(len(times)), times).tolist()

    def _expected_plain(self) -> float:
        """What a round that runs ahead should take, given the time of one that does not."""
        return max(self.rows(1) - self._host, 0.5 * self.rows(1))
