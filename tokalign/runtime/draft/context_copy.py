"""Copy what followed an earlier occurrence of the text's end, found by a suffix automaton.

The longest suffix of the text that occurred before is looked up, and its latest and its first
occurrence are both copied from. How far a copy is right depends on the length of the match, and
just as much on whether the two occurrences went on alike. The token at depth i of a copy continues
a match that is i tokens longer. `PRIORS` says how often that was right in Polish prose. As the
context grows, prompt included, every token is compared with what the match before it would have
predicted, and `Trust` shifts all these probabilities accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import NamedTuple

from tokalign.runtime.draft.mixing import Trust
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

TOUCHED = 32
"""How many of the longest suffixes know exactly where they ended last."""

ROOT = 0
"""The state of the empty match."""


class Occurrence(NamedTuple):
    """A suffix of `length` ids that occurred before.

    first, latest: how many ids of the text its first and its latest occurrence end after.
    """

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

        Cost: amortized O(1) per id read.
        """
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
        """The state for the parts of `before` followed by `token`.

        If longer parts lead to the same state, it is split: a copy of it stands for the shorter.
        """
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


SOURCE = "copy"
SESSION = "session"

SEPARATOR = TargetId(-1)
"""Stands between outputs; a copy ends before it."""

ONLY, AGREED, LATEST, FIRST = range(4)
"""Kinds of a match.

ONLY: it occurred once before. AGREED: its first and its latest occurrence went on alike. LATEST,
FIRST: they did not, and this one is copied.
"""

PRIORS = {
    ONLY: (0.17, 0.38, 0.46, 0.51, 0.57, 0.64, 0.70, 0.71, 0.74, 0.76, 0.78, 0.80, 0.85, 0.90),
    AGREED: (0.48, 0.72, 0.74, 0.77, 0.82, 0.87, 0.90, 0.91, 0.93, 0.95),
    LATEST: (0.08, 0.19, 0.22),
    FIRST: (0.05, 0.12, 0.14),
}
"""For each kind, how often the next token was right, by the length of the match.

The last value holds for all longer matches. Counted on 600,000 tokens, in passages of 1,500 tokens
from each Polish training corpus of the shared data. They are about as right in other languages; see
lab/results/copy-priors.md.
"""

_TRUST_RATE = 0.1


class ContextCopy:
    """A source of a hybrid that copies from prompt and output.

    One object serves one conversation, so nothing leaks into another.
    outputs: another text to copy from instead, such as earlier outputs; it is not changed.
    Cost: about 5 µs per token of context, 1 µs per call of `expect`.
    """

    def __init__(self, outputs: SuffixAutomaton | None = None) -> None:
        self._automaton = SuffixAutomaton() if outputs is None else outputs
        self._grows = outputs is None
        self.name = SOURCE if self._grows else SESSION
        self._trust = Trust(rate=_TRUST_RATE)
        self._place = START
        self._seen = 0

    def follow(self, ids: Sequence[TargetId]) -> Place:
        automaton = self._automaton
        for token in ids[self._seen :]:
            self.learn(automaton.occurrence(self._place), token)
            if self._grows:
                automaton.append(token)
                self._place = automaton.longest_repeat()
            else:
                self._place = automaton.advance(self._place, token)
        self._seen = len(ids)
        return self._place

    def advance(self, state: Place, token: TargetId) -> Place:
        return self._automaton.advance(state, token)

    def expect(self, state: Place) -> list[tuple[TargetId, float]]:
        """What followed the latest occurrence and the first, if that differs, with log-odds."""
        occurrence = self._automaton.occurrence(state)
        if occurrence is None:
            return []
        length, first, latest = occurrence
        copied = self._copied(occurrence)
        found = [] if copied is None else [copied]
        if first < latest and (copied is None or self._automaton.ids[first] != copied[0]):
            found.append((self._automaton.ids[first], self.probability(FIRST, length)))
        return [(token, log(p / (1.0 - p))) for token, p in found if token != SEPARATOR]

    def learn(self, occurrence: Occurrence | None, token: TargetId) -> None:
        """Compare `token` with what the match before it would have predicted."""
        if occurrence is not None and (copied := self._copied(occurrence)) is not None:
            self._trust.learn([(copied[1], None, copied[0] == token)])

    def _copied(self, occurrence: Occurrence) -> tuple[TargetId, float] | None:
        """What followed the latest occurrence, and how probably it is right now.

        Nothing followed a match that ends with the text.
        """
        length, first, latest = occurrence
        text = self._automaton.ids
        if latest == len(text):
            return None
        kind = ONLY if first == latest else AGREED if text[first] == text[latest] else LATEST
        return text[latest], self.probability(kind, length)

    def probability(self, kind: int, length: int) -> float:
        """How probably the token copied after a match of `length` (1 or more) is right: a prior,
        shifted by what has been seen."""
        prior = PRIORS[kind]
        return self._trust.calibrated(prior[min(length, len(prior)) - 1], None)


_LEAD = 8
"""Ids of the prompt before a predicted text, so that its beginning is found."""

_LONGEST_TOKEN = 4
"""Characters of a predicted text that are read for each id that there is room for."""


def predicted(
    tokenizer: Tokenizer[TargetId], prompt: Sequence[TargetId], text: str, room: int
) -> SuffixAutomaton:
    """An index of a text that the output may repeat, as far as there is room for it."""
    text = text[: room * _LONGEST_TOKEN]
    if tokenizer.opens_segment(prompt):
        ids = tokenizer.encode(text)
    else:
        ids = tokenizer.encode_parts([text])[0]
    return SuffixAutomaton([*prompt[-_LEAD:], *ids[:room]])
