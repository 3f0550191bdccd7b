"""Which next target token the draft model expects, from the logits behind its last few tokens.

A *cover* takes back j of the draft's last tokens and goes on with one that begins with their bytes:
one way in which the draft's own encoding of the text may go on. Covers are weighed by what the
model says of the tokens they keep and of the one they add; those that begin with the same target
token add up. Source: DESIGN of this project; the marginal over covers is that of "Exact Byte-Level
Probabilities from Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import NamedTuple

from tokalign.runtime.interfaces import Shortlist
from tokalign.vocab import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How far to search.

    max_back: J, the most draft tokens taken back; 0 is no healing. width: draft tokens listed at
    each position; of all of them, those within `depth` e-folds of the likeliest are translated,
    and where none of these begins with a target token, further ones until one does.
    mask: whether ways that would be absorbed are passed over; else nothing is proposed where one
        is the likeliest, which is what a drafter that does not know of them loses.
    worth: the least probability of a next target token that is offered beside the likeliest.
    """

    max_back: int = 3
    width: int = 16
    depth: float = 4.0
    mask: bool = True
    worth: float = 0.04


FOR_SAMPLING = CoverSearch(width=32, depth=5.0)
"""Where ids are drawn, the many unlikely ones count too."""


class Cover(NamedTuple):
    """A token in the place of the last `back` ones. logprob: behind the J-th from the end."""

    logprob: float
    back: int
    token: DraftId


class Way(NamedTuple):
    """A cover translated.

    data: the bytes it adds to the committed text. ids: those bytes in target ids, none where only
    more text can tell them.
    """

    cover: Cover
    data: bytes
    ids: tuple[TargetId, ...]


class Outlook(NamedTuple):
    """What may come next.

    first: next target tokens with their probabilities, the likeliest first. ways: to all of them.
    """

    first: list[tuple[TargetId, float]]
    ways: Sequence[Way]

    def way_to(self, token: TargetId) -> Way:
        """The likeliest way that begins with `token`, one of `first`."""
        begun = (way for way in self.ways if way.ids and way.ids[0] == token)
        return max(begun, key=lambda way: way.cover.logprob)


def find_covers(lists: Sequence[Shortlist]) -> tuple[list[Cover], float]:
    """All covers, the likeliest first, and the probability of all that may come.

    lists: element j says what may follow with j tokens taken back; at j = 0 all of the vocabulary
    may, whether it is listed or not. Cost: 25 µs for 4 lists of 16.
    """
    kept = _kept(lists)
    if not lists:
        return [], 0.0
    covers = [
        Cover(behind + logprob, back, DraftId(token))
        for back, (shortlist, behind) in enumerate(zip(lists, kept, strict=True))
        for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True)
    ]
    covers.sort(reverse=True)
    healed = sum(exp(cover.logprob) for cover in covers if cover.back)
    return covers, exp(kept[0]) + healed


def look_out(ways: Sequence[Way], possible: float) -> Outlook | None:
    """Add up the ways by their first target token; None where no way has one yet.

    possible: the probability of all that may come. Cost: 1 µs per way.
    """
    mass: dict[TargetId, float] = defaultdict(float)
    for way in ways:
        if way.ids:
            mass[way.ids[0]] += exp(way.cover.logprob)
    if not mass:
        return None
    first = sorted(((t, p / possible) for t, p in mass.items()), key=lambda tp: -tp[1])
    return Outlook(first, ways)


def _kept(lists: Sequence[Shortlist]) -> list[float]:
    """For each j the log-probability of the tokens kept behind the J-th position from the end."""
    taken_back = list(accumulate(shortlist.kept for shortlist in lists))
    return [taken_back[-1] - taken for taken in taken_back]
