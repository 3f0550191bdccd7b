"""What drafting may lose against plain decoding, whatever was expected: a share of the time."""

from __future__ import annotations

from tokalign.runtime.rounds import UNBOUNDED

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

_HICCUP = 2.0
"""A round counts as at most this many times what was expected: other programs may delay it."""


class DraftBudget:
    """What drafting has lost so far in all requests together, in plain passes.

    Every round is compared with plain decoding of the same tokens, whatever was expected of it.
    Nothing here belongs to one request: each has an `Allowance`, so requests may take turns.
    rounds, tokens: of all requests. promised: how many tokens these may have, with those that go
    on. lost: negative where drafting has gained.
    """

    def __init__(self) -> None:
        self.rounds = self.tokens = self.promised = 0
        self.lost = 0.0

    def lose(self, passes: float) -> float:
        """Add a loss, or a gain below 0. Returns: by how much the loss has changed."""
        before, self.lost = self.lost, max(-CREDIT, self.lost + passes)
        return self.lost - before


class Allowance:
    """What drafting may lose in one request.

    Once it has lost more, it rests until plain rounds have paid the loss back, and `REST` on top.
    Otherwise it would rest again before it has drafted: even a round that only waits for a draft
    loses a little. A request may lose a share of its own tokens, and all of them together one of
    all their tokens, so that a session of short requests may lose what one long request may.
    A rest must not outlast its cause, which may have been another text or a slow moment of the
    machine. So a draft that promises much is tried, the sooner the more it promises: one that
    promises twice plain decoding's rate after `_FIRST_REST` rounds, and after twice as many
    whenever a try has lost. A new request begins with a quarter of the wait of the one before.

    budget: of all requests. tokens: the most that the request may have. A short one may lose
    little. before: the allowance of the request before, if there was one.
    """

    def __init__(
        self, budget: DraftBudget, tokens: int = UNBOUNDED, before: Allowance | None = None
    ) -> None:
        self._budget, self._lost = budget, 0.0
        self._slack_here = min(SLACK, SLACK_SHARE * tokens)
        budget.promised = max(budget.promised, budget.tokens + tokens)
        self._rests, self._rested, self._wait = False, 0, float(_FIRST_REST)
        if before is not None:
            self._rests, self._rested = before._rests, before._rested
            self._wait = max(self._wait, before._wait / 4)

    def forbids(self, promised: float) -> bool:
        """Whether drafting has to rest although it promises so many times plain decoding's rate."""
        lost = self._budget.lost
        by_others = max(0.0, lost - self._lost)
        of_all = min(SLACK, SLACK_SHARE * self._budget.promised)
        most = min(of_all, by_others + self._slack_here)
        rest = min(REST, most / 2)
        self._rests = lost > (most - rest if self._rests else most)
        waits = promised < PROMISE or self._rested * (promised - 1.0) < self._wait
        return self._rests and waits

    def account(
        self,
        seconds: float,
        tokens: int,
        *,
        expected: float,
        plain: float,
        hidden: float = 0.0,
        drafted: bool = True,
    ) -> None:
        """A round took `seconds`, where `expected` were, and emitted `tokens` tokens.

        plain: time per token of plain decoding, `hidden` of which nobody would have waited for.
        drafted: whether it verified a draft.
        """
        budget = self._budget
        budget.rounds += 1
        budget.tokens += tokens
        alike = tokens * (1.0 - hidden / plain + SHARE)
        passes = min(seconds, _HICCUP * expected) / plain - alike
        if not self._rests:
            self._rested = 0
        elif not drafted:
            self._rested += 1
        elif passes > 0:
            self._rested, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        else:
            self._rested, self._wait = _LONGEST_WAIT, _FIRST_REST  # the next may follow at once
        self._lost += budget.lose(passes)
