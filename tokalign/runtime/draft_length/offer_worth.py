"""What the offers of free sources are worth: whether waiting for them beats running ahead.

A round that runs ahead cannot propose anything, because its pass has begun in the round before. So
waiting for an offer costs the overlap of host and device in every round.
"""

from __future__ import annotations

from tokalign.cost.expected_gain import Plan

_MEMORY = 32
"""Offers that the mean worth looks back on."""

_ASKING_MEMORY = 8
_ASKING_SHARE = 0.01
"""While plain decoding runs ahead, asking sources may take this share of the time."""


class OfferWorth:
    """The mean worth of the last offers, in plain passes, and the mean time of asking for one."""

    def __init__(self) -> None:
        self._worth = 0.05
        self._asking = 0.0

    @property
    def pays(self) -> bool:
        """Whether waiting for the next offer is expected to pay."""
        return self._worth > 0

    def learn(self, plan: Plan, *, plain: float, overlap: float) -> None:
        """The sources made an offer, of which `plan` would be proposed; a plan of 0 ids for none.

        It is worth the passes that it saves. Without one the round loses the overlap.
        """
        worth = -overlap
        if plan.length:
            worth = plan.tokens - plan.tokens / (plan.rate * plain)
        self._worth += (worth - self._worth) / _MEMORY

    def rounds_between(self, seconds: float, *, plain: float) -> int:
        """After how many plain rounds to ask again, now that asking has taken `seconds`."""
        self._asking += (seconds - self._asking) / _ASKING_MEMORY
        return round(self._asking / (_ASKING_SHARE * plain))
