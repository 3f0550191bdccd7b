"""Which next target token the draft model expects, from the logits behind its last few tokens.

A *cover* takes back j of the draft's last tokens and goes on with one that begins with their bytes:
one way in which the draft's own encoding of the text may go on. Covers are weighed by what the
model says of the tokens they keep and of the one they add; those that begin with the same target
token add up. Source: DESIGN of this project; the marginal over covers is that of "Exact Byte-Level
Probabilities from Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf, log
from operator import itemgetter
from typing import NamedTuple

from tokalign.runtime.interfaces import Shortlist
from tokalign.vocab import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How far to search.

    max_back: J, the most draft tokens taken back; 0 is no healing. width: draft tokens listed at
    each position. least: covers of a lower probability are not translated, unless none above it
    begins with a target token. Half of them go, and 1 in 200 accepted tokens, at 0.015.
    mask: whether ways that would be absorbed are passed over; else nothing is proposed where one
        is the likeliest, which is what a drafter that does not know of them loses.
    worth: the least probability of a next target token that is offered beside the likeliest.
    """

    max_back: int = 3
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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may come next.

    first: next target tokens with their probability, the likeliest first. ways: to all of them.
    doubtful: covers, and the bytes they add, that the last committed id may absorb. possible: the
    probability of all that may come, the doubtful included; what is said of `first` is of that.
    """

    first: list[tuple[TargetId, float]]
    ways: Sequence[Way]
    doubtful: Sequence[tuple[Cover, bytes]]
    possible: float

    @classmethod
    def of(
        cls, ways: Sequence[Way], doubtful: Sequence[tuple[Cover, bytes]], possible: float
    ) -> Outlook:
        """Add up the ways by their first target token. Cost: 1 µs per way."""
        mass: dict[TargetId, float] = {}
        for (logprob, _, _), _, ids in ways:
            mass[ids[0]] = mass.get(ids[0], 0.0) + exp(logprob)
        return cls(sorted(mass.items(), key=itemgetter(1), reverse=True), ways, doubtful, possible)

    def way_to(self, token: TargetId) -> Way:
        """The likeliest way that begins with `token`, one of `first`."""
        begun = (way for way in self.ways if way.ids[0] == token)
        return max(begun, key=lambda way: way.cover.logprob)


@dataclass(frozen=True, slots=True)
class Covers:
    """All ways in which the draft's text may go on.

    lists: element j says what may follow with j tokens taken back; at j = 0 all of the vocabulary
    may, whether it is listed or not. kept: for each j the log-probability of the tokens kept behind
    the J-th position from the end. possible: the probability of all that may come.
    """

    lists: Sequence[Shortlist]
    kept: Sequence[float]
    possible: float

    def ranked(self, least: float) -> Iterator[tuple[Cover, bool]]:
        """The likeliest first; with each, whether it has this share of all that is possible.

        Cost: 8 µs for 4 lists of 16, as long as only likely ones are asked for.
        """
        limit = log(self.possible * least) if self.possible else 0.0
        yield from ((cover, True) for cover in self._between(limit, inf))
        yield from ((cover, False) for cover in self._between(-inf, limit))

    def _between(self, lower: float, upper: float) -> list[Cover]:
        covers = [
            Cover(behind + logprob, back, DraftId(token))
            for back, (shortlist, behind) in enumerate(zip(self.lists, self.kept, strict=True))
            for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True)
            if lower <= behind + logprob < upper
        ]
        covers.sort(reverse=True)
        return covers


def find_covers(lists: Sequence[Shortlist]) -> Covers:
    """All covers of these lists. Cost: 4 µs for 4 of 16."""
    taken_back = list(accumulate(shortlist.kept for shortlist in lists))
    kept = [taken_back[-1] - taken for taken in taken_back]
    healed = zip(lists[1:], kept[1:], strict=True)
    return Covers(
        lists,
        kept,
        sum(map(exp, kept[:1])) + sum(exp(b) * sum(map(exp, s.logprobs)) for s, b in healed),
    )
