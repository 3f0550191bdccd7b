"""What drafting has lost against plain decoding, and when it has to rest because of that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

FIRST_LOSS, EARLY_SHARE = 1.5, 0.015
MOST_LOST, SHARE = 7.0, 0.003
"""After n tokens, drafting may have lost the time of `FIRST_LOSS` + `EARLY_SHARE` n passes, or of
`MOST_LOST` + `SHARE` n if that is less."""

MODELS_SHARE = 0.5
"""Models may lose this share of it. They wait and read the prompt first, so a few wrong drafts lose
all of it, and sources that only look up would rest with them."""

CREDIT = 64.0
"""Passes that drafting has gained count up to this many against later losses."""

_REST = 0.25
"""Drafting resumes when the loss is this many passes below the bound; else it would rest again
before it has drafted, as even a round that only waits for a draft loses a little."""

_PROMISE, _FIRST_WAIT, _LONGEST_WAIT = 1.25, 2.0, 1024.0


@dataclass(slots=True)
class Balance:
    """What drafting has lost, in bare plain rounds, and the tokens meanwhile. share: of what may be
    lost."""

    lost: float = 0.0
    tokens: int = 0
    share: float = 1.0

    @property
    def excess(self) -> float:
        """By how much the loss is above its bound."""
        n = self.tokens
        return self.lost - self.share * min(FIRST_LOSS + EARLY_SHARE * n, MOST_LOST + SHARE * n)

    def account(self, lost: float, tokens: int) -> None:
        self.lost = max(-CREDIT, self.lost + lost)
        self.tokens += tokens


@dataclass(slots=True, kw_only=True)
class Losses:
    """Whether drafting of one request has to rest, because it has lost what it may lose.

    A request may lose a share of its own tokens, and all together one of all their tokens. So a
    session of short requests may lose what one long request may.
    A rest must not outlast its cause, which may have been another text or a slow moment of the
    machine. So a draft that promises much is tried, the sooner the more it promises: one that
    promises twice plain decoding's rate after `_FIRST_WAIT` rounds, and after twice as many
    whenever a try has lost.
    """

    own: Balance = field(default_factory=Balance)
    total: Balance = field(default_factory=Balance)
    is_resting: bool = False
    rested: float = 0.0
    wait: float = _FIRST_WAIT

    def next_request(self) -> Losses:
        """That of a new request: it goes on resting, and tries again four times as soon."""
        wait = max(_FIRST_WAIT, self.wait / 4)
        return replace(self, own=Balance(share=self.own.share), wait=wait)

    @classmethod
    def of_models(cls) -> Losses:
        """Those of the rounds in which a model drafted."""
        return cls(own=Balance(share=MODELS_SHARE), total=Balance(share=MODELS_SHARE))

    def forbids(self, promised: float, worst: float = 0.0) -> bool:
        """Whether drafting rests although it promises this multiple of plain decoding's rate.
        worst: how many plain rounds the draft would lose if nothing of it was accepted."""
        excess = max(self.own.excess, self.total.excess) + worst
        self.is_resting = excess > (-_REST if self.is_resting else 0.0)
        waits = promised < _PROMISE or self.rested * (promised - 1.0) < self.wait
        return self.is_resting and waits

    def allow(self, loss: float) -> bool:
        """Whether so many plain rounds may be lost at once."""
        return max(self.own.excess, self.total.excess) + loss <= 0.0

    def account(self, lost: float, tokens: int, *, drafted: bool) -> None:
        """A round lost this many plain rounds. drafted: whether it verified a draft."""
        self.own.account(lost, tokens)
        self.total.account(lost, tokens)
        if not self.is_resting:
            self.rested = 0.0
        elif not drafted:
            self.rested += 1
        elif lost > 0:
            self.rested, self.wait = 0.0, min(2 * self.wait, _LONGEST_WAIT)
        else:
            self.rested, self.wait = _LONGEST_WAIT, _FIRST_WAIT  # the next may follow at once
