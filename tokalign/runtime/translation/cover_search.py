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
from math import exp, log
from typing import TypeAlias

from tokalign.runtime.interfaces import Shortlist
from tokalign.tokenizer.vocabulary import TargetId


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


Cover: TypeAlias = tuple[float, int, int]
"""A token in the place of the last few: its log-probability behind the J-th from the end, how many
it takes back, its id."""

Way: TypeAlias = tuple[Cover, bytes, tuple[TargetId, ...]]
"""A cover translated: the bytes it adds to the committed text, and their ids, one or more."""

Translate: TypeAlias = Callable[[int, int], tuple[bytes, tuple[TargetId, ...] | None]]
"""The bytes that a cover (how many it takes back, its id) adds, and their target ids: none where
only more text can tell them, None where the last committed id may absorb them."""


class Outlook:
    """What may come next, as far as it has been looked at: one object per round.

    lists: element j says what may follow with j tokens taken back; at j = 0 all of the vocabulary
    may, whether it is listed or not.

    mass: the next target tokens and how probable they are, of `possible`, all that may come.
    ways: what led to them, the likeliest first. doubtful: covers, and the bytes they add, that may
    be absorbed.
    Its loops are plain on purpose: behind a model's pass every other kind of thing that is used,
    a generator or a named tuple, is a handful of cache misses (27 µs of 63 here).
    """

    def __init__(self, lists: Sequence[Shortlist], least: float, translate: Translate) -> None:
        self._translate = translate
        self.mass: dict[TargetId, float] = {}
        self.ways: list[Way] = []
        self.doubtful: list[tuple[Cover, bytes]] = []
        behind = 0.0
        for at in lists:
            behind += at.kept
        possible = exp(behind) if lists else 0.0
        covers: list[Cover] = []
        for back, at in enumerate(lists):
            behind -= at.kept
            logprobs = at.logprobs
            for i, token in enumerate(at.ids):
                logprob = behind + logprobs[i]
                covers.append((logprob, back, token))
                if back:  # only what goes on from the bytes taken back may come
                    possible += exp(logprob)
        covers.sort()
        limit = log(possible * least) if possible else 0.0
        rest, unlikely = 0.0, len(covers)
        while unlikely and covers[unlikely - 1][0] >= limit:
            unlikely -= 1
            rest += exp(covers[unlikely][0])
        self.possible = possible
        self._covers = covers  # not looked at yet, the likeliest last
        self._unlikely = unlikely  # how many of them are not worth a look
        self._rest = rest

    def look(self, *, until_clear: bool = False) -> None:
        """Translate all likely covers, or until one target token clearly leads.

        Where none of them begins with a target token, less likely ones until one does.
        Cost: 5 µs per cover.
        """
        covers, mass = self._covers, self.mass
        while covers and (len(covers) > self._unlikely or not mass):
            if until_clear and self._is_clear():
                return
            cover = covers.pop()
            logprob, back, token = cover
            probability = exp(logprob)
            self._rest -= probability
            data, ids = self._translate(back, token)
            if ids:
                self.ways.append((cover, data, ids))
                mass[ids[0]] = mass.get(ids[0], 0.0) + probability
            elif ids is None:
                self.doubtful.append((cover, data))

    def leader(self) -> TargetId:
        """The likeliest next target token, as far as has been looked."""
        return max(self.mass, key=self.mass.__getitem__)

    def way_to(self, token: TargetId) -> Way:
        """The likeliest way that begins with `token`, one of `mass`."""
        for way in self.ways:
            if way[2][0] == token:
                return way
        raise KeyError(token)

    def _is_clear(self) -> bool:
        lead = second = 0.0
        for mass in self.mass.values():
            if mass > lead:
                lead, second = mass, lead
            elif mass > second:
                second = mass
        return lead > 0.0 and lead >= second + self._rest * _FOR_ONE
