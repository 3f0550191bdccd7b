"""Which next target token the draft model expects, from the logits behind its last few tokens.

A *cover* takes back j of the draft's last tokens and goes on with one that begins with their bytes:
one way in which the draft's own encoding of the text may go on. Covers are weighed by what the
model says of the tokens they keep and of the one they add; those that begin with the same target
token add up. Source: DESIGN of this project; the marginal over covers is that of "Exact Byte-Level
Probabilities from Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

from tokalign.runtime.interfaces import Shortlist
from tokalign.vocab import TargetId


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


_FOR_ONE = 1 / 3
"""Of what was not looked at, so much is taken to begin with the same target token, the second one.
In 1 of 200 rounds another token leads in the end; half of the rounds need no second look."""

FOR_SAMPLING = CoverSearch(width=32, least=0.003)
"""Where ids are drawn, the many unlikely ones count too."""


class Cover(NamedTuple):
    """A token in the place of the last `back` ones. logprob: behind the J-th from the end."""

    logprob: float
    back: int
    token: int


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
        self._translate = translate
        behind = sum([at.kept for at in lists])
        self.possible = exp(behind) if lists else 0.0
        covers: list[tuple[float, int, int]] = []
        for back, at in enumerate(lists):
            behind -= at.kept
            found = [(behind + p, back, i) for p, i in zip(at.logprobs, at.ids, strict=True)]
            covers += found
            if back:  # only what goes on from the bytes taken back may come
                self.possible += sum([exp(cover[0]) for cover in found])
        covers.sort()
        self._covers = covers  # not looked at yet, the likeliest last
        limit = log(self.possible * least) if self.possible else 0.0
        self._unlikely = bisect_left(covers, (limit,))
        self._rest = sum([exp(cover[0]) for cover in covers[self._unlikely :]])
        self.mass: dict[TargetId, float] = {}
        self.ways: list[Way] = []
        self.doubtful: list[tuple[Cover, bytes]] = []

    def look(self, *, until_clear: bool = False) -> None:
        """Translate all likely covers, or until one target token clearly leads.

        Where none of them begins with a target token, less likely ones until one does.
        Cost: 5 µs per cover.
        """
        covers = self._covers
        while len(covers) > self._unlikely and not (until_clear and self._is_clear()):
            self._look_at_next()
        while covers and not self.ways:
            self._look_at_next()

    def way_to(self, token: TargetId) -> Way:
        """The likeliest way that begins with `token`, one of `mass`."""
        return next(way for way in self.ways if way.ids[0] == token)

    def _is_clear(self) -> bool:
        if not self.mass:
            return False
        lead, second, *_ = sorted([*self.mass.values(), 0.0], reverse=True)
        return lead >= second + self._rest * _FOR_ONE

    def _look_at_next(self) -> None:
        cover = Cover._make(self._covers.pop())
        probability = exp(cover.logprob)
        self._rest -= probability
        data, ids = self._translate(cover)
        if ids:
            self.ways.append(Way(cover, data, ids))
            self.mass[ids[0]] = self.mass.get(ids[0], 0.0) + probability
        elif ids is None:
            self.doubtful.append((cover, data))
