"""Where the end of a text occurred before, for a text that grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tokalign.tokenizer.vocabulary import TargetId

TOUCHED = 32
"""How many of the longest suffixes know exactly where they ended last."""

ROOT = 0
"""The state of the empty match."""


class Occurrence(NamedTuple):
    """A suffix of `length` ids that occurred before; its first and latest occurrence end after this
    many ids of the text."""

    length: int
    first: int
    latest: int


class Place(NamedTuple):
    """Where reading a text has led: a state, and how many of the last ids read match there."""

    state: int
    length: int


START = Place(ROOT, 0)
"""Where reading begins."""


class SuffixAutomaton:
    """The automaton of a text that grows by one id at a time: where its end occurred before.

    A state stands for all parts of the text that end at the same positions. Its link leads to the
    longest suffix of these parts that also ends elsewhere. So the longest suffix of the text that
    occurred before is found at the link of the last state, without any search, and shorter ones
    further along the links. Before each append the 32 longest suffixes are told that they end
    there, and the shorter ones are not: in a text that repeats one phrase over and over, the chain
    of links is as long as the text.
    Example: after "a b c a b" the longest suffix that occurred before is "a b", after 2 ids.
    Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985), built
    online; SAM-Decoding (Hu et al., 2024) uses it for speculation.
    ids: all of the text so far. Cost: amortized O(1) per id, 2-3 µs; about 530 bytes per id.
    """

    def __init__(self, ids: Iterable[TargetId] = ()) -> None:
        self._next: list[dict[TargetId, int]] = [{}]
        self._link = [ROOT]
        self._length = [0]
        self._first = [0]
        self._latest = [0]
        self._last = ROOT
        self.ids: list[TargetId] = []
        self.extend(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, ids: Iterable[TargetId]) -> None:
        for token in ids:
            self.append(token)

    def append(self, token: TargetId) -> None:
        self._touch()
        self.ids.append(token)
        state = self._add(len(self.ids), len(self.ids), len(self.ids), {})
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

    def longest_repeat(self) -> Place:
        """The longest suffix of the text that occurred before. Cost: under 1 µs."""
        state = self._link[self._last]
        return Place(state, self._length[state])

    def occurrence(self, place: Place) -> Occurrence | None:
        """Where the match of a place ended in the text; None for the empty match."""
        state, length = place
        return Occurrence(length, self._first[state], self._latest[state]) if length else None

    def advance(self, place: Place, token: TargetId) -> Place:
        """The place of the longest match after `token` is read, which need not extend the text.
        Cost: amortized O(1)."""
        state, length = place.state, place.length
        while token not in self._next[state]:
            if state == ROOT:
                return START
            state = self._link[state]
            length = self._length[state]
        return Place(self._next[state][token], length + 1)

    def _touch(self) -> None:
        state, end, link, latest = self._last, len(self.ids), self._link, self._latest
        for _ in range(TOUCHED):
            latest[state] = end
            state = link[state]
            if state == ROOT:
                return

    def _split(self, before: int, token: TargetId) -> int:
        """The state for the parts of `before` followed by `token`. If longer parts lead to the same
        state, a copy of it stands for the shorter."""
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

    def _add(self, length: int, first: int, latest: int, following: dict[TargetId, int]) -> int:
        self._next.append(following)
        self._link.append(ROOT)
        self._length.append(length)
        self._first.append(first)
        self._latest.append(latest)
        return len(self._link) - 1
