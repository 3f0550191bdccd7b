"""What drafting may lose against plain decoding, whatever was expected of it.

Every round is compared with plain decoding of the same tokens. Once drafting has lost more than it
may, it rests until plain rounds have paid the loss back.
"""

from __future__ import annotations

SLACK, SLACK_SHARE = 8.0, 0.03
"""The most that drafting may lose: passes, or a share of the request's tokens if that is less."""

CREDIT = 64.0
"""Passes that drafting has gained count up to this many against later losses."""

SHARE = 0.004
"""The share of all time that drafting may lose on top. Plain rounds pay losses back with it."""

_HICCUP = 2.0
"""A round counts as at most this many times what was expected: other programs may delay it."""


class DraftBudget:
    """What drafting has lost so far, in plain passes. Requests share it."""

    def __init__(self) -> None:
        self.rounds = 0
        self._lost, self._slack = 0.0, SLACK

    @property
    def is_spent(self) -> bool:
        """Whether drafting has lost so much that it has to rest."""
        return self._lost > self._slack

    def begin(self, tokens: int) -> None:
        """A request for at most `tokens` tokens begins. A short one may lose little."""
        self._slack = min(SLACK, SLACK_SHARE * tokens)

    def account(self, seconds: float, tokens: int, *, expected: float, plain: float) -> None:
        """A round took `seconds`, where `expected` were, and emitted `tokens` tokens.

        plain: time per token of plain decoding.
        """
        self.rounds += 1
        passes = min(seconds, _HICCUP * expected) / plain - tokens * (1 + SHARE)
        self._lost = max(-CREDIT, self._lost + passes)
