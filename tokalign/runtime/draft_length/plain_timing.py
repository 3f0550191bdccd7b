"""When plain decoding is to be timed: what drafting brings is measured against it."""

from __future__ import annotations

from tokalign.runtime.draft_length.learned_costs import LearnedCosts

_ROUNDS = 3
"""Consecutive plain rounds that it takes; only those that both begin and end ahead are timed."""

_REFRESH = 256
"""The most rounds without a timed plain one."""


class PlainTiming:
    """Counts the plain rounds that one request still has to spend on timing."""

    def __init__(self, costs: LearnedCosts) -> None:
        self._costs = costs
        self.rounds_due = 0 if costs.plain_rounds else _ROUNDS
        self._since_timed = 0

    def refresh(self) -> None:
        """Demand plain rounds if the last timed one is too long ago.

        The fewer plain rounds have been timed, the sooner more are due, so that a mistake does not
        last.
        """
        after = min(_REFRESH, _REFRESH // 8 * max(1, self._costs.plain_rounds))
        if self._since_timed >= after:
            self.rounds_due = _ROUNDS

    def count_plain(self) -> None:
        """A plain round begins."""
        self.rounds_due = max(0, self.rounds_due - 1)

    def count_round(self, *, timed: bool) -> None:
        """A round is over. timed: whether it timed plain decoding."""
        self._since_timed = 0 if timed else self._since_timed + 1
