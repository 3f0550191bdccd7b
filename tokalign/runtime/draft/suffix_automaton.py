"""A suffix automaton over ids: which earlier text ends like the text so far, and what followed it.

A state stands for the suffixes that end at the same positions; its link leads to the longest
suffix that also ends elsewhere. So the longest end of the text that occurred before is the link of
the last state, at no search at all, and what is shorter lies further down the links.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985), online as
usual; SAM-Decoding (Hu et al., 2024) uses it for speculation. The latest end of a state is written
down before each append on the longest suffixes only, so that an append stays cheap in text that
repeats one phrase over and over, where the chain of links is as long as the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

TOUCHED = 32
"""So many of the longest suffixes learn of each position that they end there."""

ROOT = 0


class Occurrence(NamedTuple):
    """A suffix of `length` ids that ended before: first and latest behind so many ids."""

    length: int
    first: int
    latest: int


class Place(NamedTuple):
    """A state and how many ids at the end of what was read it matches."""

    state: int
    length: int


class SuffixAutomaton:
    """Grows by one id at a time.

    Cost: amortized O(1) per id, 2-3 µs; about 530 bytes per id.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [ROOT]
        self._length = [0]
        self._first = [0]
        self._latest = [0]
        self._last = ROOT
        self._ids: list[int] = []
        self.extend(ids)

    def __len__(self) -> int:
        """How many ids it was given."""
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """All ids so far. Not a copy."""
        return self._ids

    def extend(self, ids: Iterable[int]) -> None:
        """Append every id."""
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Take in one more id."""
        self._touch()
        self._ids.append(token)
        state = self._add(len(self._ids), len(self._ids), len(self._ids), {})
        link, following = self._link, self._next
        before = self._last
        while token not in following[before]:
            following[before][token] = state
            if before == ROOT:
                break
            before = link[before]
        else:
            link[state] = self._split(before, token)
        self._last = state

    def longest_repeat(self) -> Occurrence | None:
        """The longest end of the text that occurred before. Cost: under 1 µs."""
        state = self._link[self._last]
        return None if state == ROOT else self._occurrence(state, self._length[state])

    def repeats(self) -> Iterator[Occurrence]:
        """The ends of the text that occurred before, longest first, one for each set of positions.

        The first occurrence is exact; the latest is for the 32 longest, else some occurrence.
        """
        state = self._link[self._last]
        while state != ROOT:
            yield self._occurrence(state, self._length[state])
            state = self._link[state]

    def occurrence(self, place: Place) -> Occurrence:
        """Where what a place matches ended."""
        return self._occurrence(place.state, place.length)

    def end(self) -> Place:
        """The place of the whole text."""
        return Place(self._last, len(self._ids))

    def advance(self, place: Place, token: int) -> Place:
        """The place of the longest match that ends with `token`: read on in another text.

        Cost: amortized O(1) per id read.
        """
        state, length = place.state, place.length
        while token not in self._next[state]:
            if state == ROOT:
                return Place(ROOT, 0)
            state = self._link[state]
            length = self._length[state]
        return Place(self._next[state][token], length + 1)

    def _touch(self) -> None:
        """Write down that the longest suffixes end here."""
        state, end, link, latest = self._last, len(self._ids), self._link, self._latest
        for _ in range(TOUCHED):
            latest[state] = end
            state = link[state]
            if state == ROOT:
                return

    def _split(self, before: int, token: int) -> int:
        """The state of what is read to `before` and then `token`: a copy where more leads there."""
        following, length = self._next, self._length
        found = following[before][token]
        if length[found] == length[before] + 1:
            return found
        copy = self._add(
            length[before] + 1, self._first[found], self._latest[found], following[found].copy()
        )
        self._link[copy] = self._link[found]
        self._link[found] = copy
        while following[before].get(token) == found:
            following[before][token] = copy
            if before == ROOT:
                break
            before = self._link[before]
        return copy

    def _add(self, length: int, first: int, latest: int, following: dict[int, int]) -> int:
        self._next.append(following)
        self._link.append(ROOT)
        self._length.append(length)
        self._first.append(first)
        self._latest.append(latest)
        return len(self._link) - 1

    def _occurrence(self, state: int, length: int) -> Occurrence:
        return Occurrence(length, self._first[state], self._latest[state])
