"""Which next target token the draft model expects, from the logits behind its last few tokens.

A *cover* takes back j of the draft's last tokens and goes on with one that begins with their bytes:
one way in which the draft's own encoding of the text may go on. Covers are weighed by what the
model says of the tokens they keep and of the one they add; those that begin with the same target
token add up. Source: DESIGN of this project; the marginal over covers is that of "Exact Byte-Level
Probabilities from Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf, log
from typing import NamedTuple

from tokalign.runtime.interfaces import Shortlist
from tokalign.vocab import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How far to search.

    max_back: J, the most draft tokens taken back; 0 is no healing, a third one changed nothing.
    width: draft tokens listed at each position.
    least: covers of a lower probability are not translated, unless none above it begins with a
        target token. At 0.015 half of them go, and 1 in 200 accepted tokens.
    mask: whether ways that would be absorbed are passed over; else nothing is proposed where one
        is the likeliest, which is what a drafter that does not know of them loses.
    worth: the least probability of a next target token that is offered beside the likeliest.
    """

    max_back: int = 2
    width: int = 16
    least: float = 0.015
    mask: bool = True
    worth: float = 0.04


FOR_SAMPLING = CoverSearch(width=32, least=0.003)
"""Where ids are drawn, the many unlikely ones count too."""


class Cover(NamedTuple):
    """A token in the place of the last `back` ones. logprob: behind the J-th from the end."""

    logprob: float
    back: int
    token: DraftId


class Way(NamedTuple):
    """A cover translated. data: the bytes it adds to the committed text. ids: those, one or more.

    A cover whose ids only more text can tell is no way yet.
    """

    cover: Cover
    data: bytes
    ids: tuple[TargetId, ...]


class Outlook:
    """What may come next, as far as it has been looked at: one object per round.

    lists: element j says what may follow with j tokens taken back; at j = 0 all of the vocabulary
    may, whether it is listed or not. translate: gives the bytes that a cover adds and their target
    ids; none where only more text can tell them, None where the last committed id may absorb them.

    mass: the next target tokens and how probable they are, of `possible`, all that may come.
    doubtful: covers, and the bytes they add, that may be absorbed.
    """

    def __init__(
        self,
        lists: Sequence[Shortlist],
        least: float,
        translate: Callable[[Cover], tuple[bytes, tuple[TargetId, ...] | None]],
    ) -> None:
        self._lists, self._translate = lists, translate
        taken_back = list(accumulate(shortlist.kept for shortlist in lists))
        self._kept = [taken_back[-1] - taken for taken in taken_back]
        self.possible = self._all_that_may_come()
        self._limit = log(self.possible * least) if self.possible else 0.0
        self._likely = self._between(self._limit, inf)
        self._rest = sum([exp(cover.logprob) for cover in self._likely])
        self._is_exhausted = False
        self.mass: dict[TargetId, float] = {}
        self.ways: list[Way] = []
        self.doubtful: list[tuple[Cover, bytes]] = []

    def look(self, *, until_certain: bool = False) -> None:
        """Translate all likely covers, or until none that is left can change the likeliest token.

        Where none of them begins with a target token, less likely ones until one does.
        Cost: 5 µs per cover.
        """
        while self._likely and not (until_certain and self._is_certain()):
            cover = self._likely.pop()
            self._rest -= exp(cover.logprob)
            self._add(cover)
        if not self.ways and not self._is_exhausted:
            self._is_exhausted = True
            unlikely = self._between(-inf, self._limit)
            while unlikely and not self.ways:
                self._add(unlikely.pop())

    def way_to(self, token: TargetId) -> Way:
        """The likeliest way that begins with `token`, one of `mass`."""
        return next(way for way in self.ways if way.ids[0] == token)

    def _is_certain(self) -> bool:
        lead, *others = sorted(self.mass.values(), reverse=True) or [0.0]
        return lead >= self._rest + (others[0] if others else 0.0) and bool(self.mass)

    def _add(self, cover: Cover) -> None:
        data, ids = self._translate(cover)
        if ids:
            self.ways.append(Way(cover, data, ids))
            self.mass[ids[0]] = self.mass.get(ids[0], 0.0) + exp(cover.logprob)
        elif ids is None:
            self.doubtful.append((cover, data))

    def _all_that_may_come(self) -> float:
        """At each position with tokens taken back only what goes on from their bytes may."""
        healed = zip(self._lists[1:], self._kept[1:], strict=True)
        mass = sum(exp(behind) * sum(map(exp, at.logprobs)) for at, behind in healed)
        return mass + sum(map(exp, self._kept[:1]))

    def _between(self, lower: float, upper: float) -> list[Cover]:
        """Covers of such log-probabilities, the likeliest last."""
        covers = [
            Cover(behind + logprob, back, DraftId(token))
            for back, (shortlist, behind) in enumerate(zip(self._lists, self._kept, strict=True))
            for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True)
            if lower <= behind + logprob < upper
        ]
        covers.sort()
        return covers
