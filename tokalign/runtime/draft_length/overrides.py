"""Rounds that do not do what is expected to pay best.

Drafting rests after losses (`DraftBudget`), and plain decoding is timed (`PlainTiming`), because
what drafting brings is measured against it. Drafts that are not expected to pay are made now and
then (`ModelTrials`, `LongDrafts`): only drafts tell what drafts cost and bring.
"""

from __future__ import annotations

from tokalign.runtime.draft_length.learned_costs import LearnedCosts

SLACK, SLACK_SHARE = 8.0, 0.03
"""The most that drafting may lose: passes, or a share of the tokens if that is less."""

CREDIT = 64.0
"""Passes that drafting has gained count up to this many against later losses."""

REST = 0.25
"""Passes that are paid back on top before drafting goes on; half of what may be lost if that is
less."""

SHARE = 0.004
"""The share of all time that drafting may lose on top. Plain rounds pay losses back with it."""

PROMISE = 1.25
"""While drafting rests, a draft is tried if it promises this many times plain decoding's rate."""

_HICCUP = 2.0
"""A round counts as at most this many times what was expected: other programs may delay it."""

_TIMED_ROUNDS = 3
"""Consecutive plain rounds of the first timing: only those that begin and end ahead are timed."""

_REFRESH = 256
"""The most rounds without a timed one that had no proposal."""

_FIRST_WAIT, _LONGEST_WAIT = 16, 1024
_FIRST_REST = 2


class DraftBudget:
    """What drafting has lost so far, in plain passes, whatever was expected. Requests share it.

    Every round is compared with plain decoding of the same tokens. Once drafting has lost more than
    it may, it rests until plain rounds have paid the loss back, and `REST` on top. Otherwise it
    would rest again before it has drafted: even a round that only waits for a draft loses a little.
    A request may lose a share of its own tokens, and all of them together one of all their tokens,
    so that a session of short requests may lose what one long request may.
    A rest must not outlast its cause, which may have been another text or a slow moment of the
    machine. So a draft that promises much is tried, the sooner the more it promises: one that
    promises twice plain decoding's rate after `_FIRST_REST` rounds, and after twice as many
    whenever a try has lost. A new request begins with a quarter of the wait that the last one had.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._lost = self._lost_before = 0.0
        self._tokens = 0
        self._slack = self._slack_here = SLACK
        self._rests = False
        self._rested, self._wait = 0, float(_FIRST_REST)

    @property
    def is_spent(self) -> bool:
        """Whether drafting has lost so much that it has to rest."""
        return self._rests

    def forbids(self, promised: float) -> bool:
        """Whether drafting has to rest although it promises so many times plain decoding's rate."""
        waits = promised < PROMISE or self._rested * (promised - 1.0) < self._wait
        return self._rests and waits

    def begin(self, tokens: int) -> None:
        """A request for at most `tokens` tokens begins. A short one may lose little."""
        self._slack_here = min(SLACK, SLACK_SHARE * tokens)
        self._slack = min(SLACK, SLACK_SHARE * (self._tokens + tokens))
        self._lost_before = self._lost
        self._wait = max(_FIRST_REST, self._wait / 4)
        self._look()

    def account(
        self, seconds: float, tokens: int, *, expected: float, plain: float, drafted: bool = True
    ) -> None:
        """A round took `seconds`, where `expected` were, and emitted `tokens` tokens.

        plain: time per token of plain decoding. drafted: whether it verified a draft.
        """
        self.rounds += 1
        self._tokens += tokens
        passes = min(seconds, _HICCUP * expected) / plain - tokens * (1 + SHARE)
        if not self._rests:
            self._rested = 0
        elif not drafted:
            self._rested += 1
        elif passes > 0:
            self._rested, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        else:
            self._rested, self._wait = _LONGEST_WAIT, _FIRST_REST  # the next may follow at once
        self._lost = max(-CREDIT, self._lost + passes)
        self._look()

    def _look(self) -> None:
        """Whether to rest, now that something has been lost or paid back."""
        most = min(self._slack, max(0.0, self._lost_before) + self._slack_here)
        rest = min(REST, most / 2)
        self._rests = self._lost > (most - rest if self._rests else most)


class PlainTiming:
    """Counts the plain rounds that one request still has to spend on timing."""

    def __init__(self, costs: LearnedCosts) -> None:
        self._costs = costs
        self.rounds_due = 0 if costs.plain_rounds else _TIMED_ROUNDS

    def refresh(self) -> None:
        """Demand a round without a proposal if the last timed one is too long ago.

        One is enough, because plain decoding is never taken to be slower than it is. Where it is
        taken to be faster than it is, plain rounds are what will follow. The fewer of them have
        been timed, the sooner another is due, so that a mistake does not last.
        """
        after = min(_REFRESH, _REFRESH // 8 * max(1, self._costs.without_draft))
        if self._costs.since_then >= after:
            self.rounds_due = max(1, self.rounds_due)

    def count_plain(self) -> None:
        """A plain round begins."""
        self.rounds_due = max(0, self.rounds_due - 1)


class ModelTrials:
    """When a draft model that does not pay is tried again: after 16 rounds, then 32, ..., 1024.

    After a draft that did pay it is tried again at once: the text may have changed, and one draft
    in hundreds of rounds would take long to tell.
    """

    def __init__(self) -> None:
        self._wait, self._rounds_left = _FIRST_WAIT, 0

    @property
    def is_due(self) -> bool:
        """Whether the model has waited long enough."""
        return self._rounds_left <= 0

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited so long that even a hopeless model is tried.

        The costs that make it hopeless may be mistaken.
        """
        return self._rounds_left <= -_LONGEST_WAIT

    def count_round(self) -> None:
        """A round begins."""
        self._rounds_left -= 1

    def tried(self, *, pays: bool) -> None:
        """The model drafts. If it is not expected to pay, the next trial waits twice as long."""
        self._rounds_left = 0 if pays else self._wait
        self._wait = _FIRST_WAIT if pays else min(2 * self._wait, _LONGEST_WAIT)

    def paid(self) -> None:
        """The latest draft has brought more than it cost."""
        self._rounds_left = 0


class LongDrafts:
    """Which drafts are made longer than expected to be best: the 8th, 16th, 32nd, ..."""

    def __init__(self) -> None:
        self._drafts, self._next = 0, 8

    @property
    def is_due(self) -> bool:
        """Whether the next draft is to be a longer one."""
        return self._drafts + 1 >= self._next

    def count_draft(self) -> None:
        """A draft is made."""
        self._drafts += 1
        if self._drafts >= self._next:
            self._next = self._drafts + min(self._drafts, _LONGEST_WAIT)
