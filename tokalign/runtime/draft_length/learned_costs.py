"""What passes cost: times of rows, of drafts and of plain decoding, learned while decoding."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.cost.expected_gain import Costs
from tokalign.runtime.draft_length.estimates import PassTimes

_PLAIN_WEIGHT = 4
"""Observations that the expected time of plain decoding is worth on a calibrated machine."""

_RANKED_IDS = 32
"""The most ids that a hybrid weighs by these costs."""


class LearnedCosts:
    """Times of rounds on one machine for one pair of models.

    rows: time of a round by the rows it verifies, without drafting, host and device in turn.
    drafts: time of a draft by its passes; None without a draft model. Until `drafts.is_calibrated`
    they count in passes of the target. host: seconds of a round that running ahead should hide.
    plain_rounds: how many rounds of plain decoding have been timed.
    """

    def __init__(
        self, rows: PassTimes, drafts: PassTimes | None = None, *, host: float = 0.0
    ) -> None:
        self.rows, self.drafts = rows, drafts
        self.plain_rounds = 0
        self._host = host
        # An assumed curve has no seconds, so the first measurement replaces its time at once.
        known = rows.is_calibrated
        prior = self._expected_plain() if known else 1.0
        self._plain_times = PassTimes([prior], weight=_PLAIN_WEIGHT if known else 0)
        self._plain = self._expected_plain()

    @property
    def plain(self) -> float:
        """Time per token of plain decoding, host and device overlapping."""
        return self._plain

    @property
    def overlap(self) -> float:
        """What a plain round that does not run ahead loses by that, in plain passes."""
        return max(0.0, self.rows(1) / self.plain - 1)

    def verification(self, most: int) -> Costs:
        """Costs of verifying up to `most` ids in a round that does not run ahead."""
        return Costs(rows=self.rows.table(most + 1))

    def for_ranking(self) -> Costs:
        """Costs of rows and of one draft pass, by which a hybrid ranks its chains."""
        draft_pass = 0.0 if self.drafts is None else self.draft_times(1)[0]
        return Costs(rows=self.rows.table(_RANKED_IDS + 1), draft_pass=draft_pass)

    def draft_times(self, most: int) -> Sequence[float]:
        """Times of drafts of 1, 2, ..., `most` passes."""
        assert self.drafts is not None, "there is no draft model"
        times = self.drafts.table(most)
        return times if self.drafts.is_calibrated else [time * self.plain for time in times]

    def observe_round(self, rows: int, seconds: float) -> None:
        """A round that did not run ahead verified `rows` rows in `seconds`, without drafting."""
        self.rows.observe(rows, seconds)
        if not self._plain_times.is_calibrated:
            self._plain = self._expected_plain()

    def observe_draft(self, passes: int, seconds: float) -> None:
        """A draft of `passes` passes took `seconds`."""
        assert self.drafts is not None, "there is no draft model"
        self.drafts.observe(passes, seconds)

    def observe_plain(self, seconds: float) -> None:
        """One token of plain decoding that ran ahead took `seconds`."""
        self.plain_rounds += 1
        self._plain_times.observe(1, seconds)
        self._plain = self._plain_times(1)
        if not self.rows.is_calibrated:
            self.rows.observe(1, seconds + self._host)

    def _expected_plain(self) -> float:
        """What a round that runs ahead should take, given the time of one that does not."""
        return max(self.rows(1) - self._host, 0.5 * self.rows(1))
