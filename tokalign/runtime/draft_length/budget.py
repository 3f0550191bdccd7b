"""The one bound on what drafting may lose, and the one rule by which things are tried all the same.

Drafting rests after losses (`DraftBudget`). What is not expected to pay is done now and then
(`Trials`): only drafts tell what drafts cost and bring, and only plain rounds what these take.
"""

from __future__ import annotations

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

_FIRST_REST, _LONGEST_WAIT = 2, 1024

_PARKED_AFTER, _PROBED, _PROBE = 64, 256, 16

_HICCUP = 2.0
"""A round counts as at most this many times what was expected: other programs may delay it."""


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


class Parking:
    """When nothing is kept for drafts, because none has been worth it for long.

    Storing what the target found likely takes a part of a small model's pass, and so does the noise
    of coming positions. After `_PARKED_AFTER` rounds in which no draft was right, both stop, except
    in the last `_PROBE` of every `_PROBED` rounds, and sources are looked up more seldom.
    """

    def __init__(self) -> None:
        self._idle = 0

    @property
    def is_parked(self) -> bool:
        """Whether this round keeps nothing."""
        beyond = self._idle - _PARKED_AFTER
        return beyond >= 0 and beyond % _PROBED < _PROBED - _PROBE

    def count(self, *, accepted: int) -> None:
        """A round is over, in which so many drafted ids were accepted."""
        self._idle = 0 if accepted else self._idle + 1


class Trials:
    """When something is tried that is not expected to pay: after waits that double.

    A wait is counted in rounds or drafts. first: the first wait. longest: the longest one.
    at_once: whether the first trial is due without a wait.
    """

    def __init__(self, first: int, longest: int = _LONGEST_WAIT, *, at_once: bool = False) -> None:
        self._first, self._longest = first, longest
        self._wait, self._next = (0, first) if at_once else (first, 2 * first)
        self._waited = 0

    @property
    def is_due(self) -> bool:
        """Whether it has waited long enough."""
        return self._waited >= self._wait

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited long after it was due, so that what hinders it may be mistaken."""
        return self._waited >= self._wait + self._longest

    def count(self) -> None:
        self._waited += 1

    def tried(self, *, pays: bool = False) -> None:
        """It is tried. If it does not pay, the next trial waits twice as long."""
        self._waited = 0
        self._wait = 0 if pays else self._next
        self._next = self._first if pays else min(2 * self._next, self._longest)

    def paid(self) -> None:
        """The latest trial has brought more than it cost, so it is repeated at once.

        The text may have changed, and one draft in hundreds of rounds would take long to tell.
        """
        self._wait = 0

    def count_or_try(self) -> None:
        """One more draft, which is the trial if one is due."""
        if self.is_due:
            self.tried()
        self.count()
