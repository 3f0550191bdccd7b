"""Copy what followed an earlier occurrence of the text's end, found by a suffix automaton.

The longest suffix of the text that occurred before is looked up, and its latest occurrence is
copied from. How far a copy is right depends on the length of the match, and just as much on whether
the first occurrence went on alike. The token at depth i of a copy continues a match that is i
tokens longer. `PRIORS` says how often that was right in a model's answers. As the output grows,
every token is compared with what the match before it would have predicted, and `Trust` shifts these
probabilities, apart for copies of the prompt and of the output. How far the prompt repeats itself
says little of how far it is repeated, so nothing is learned of that but where passages resume.
A long match is a `Passage`. Where the text leaves it, for example for another name, it is looked
for where the two meet again, and copied on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from operator import itemgetter
from typing import NamedTuple

from tokalign.runtime.draft.suffix_automaton import START, Occurrence, Place, SuffixAutomaton
from tokalign.runtime.draft.trust import Trust
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "copy"
SESSION = "session"

SEPARATOR = TargetId(-1)
"""Stands between outputs; a copy ends before it."""

ONLY, AGREED, LATEST = range(3)
"""Kinds of a match: it occurred once before; its first and its latest occurrence went on alike; or
they did not, and the latest is copied."""

PRIORS = {
    ONLY: (0.25, 0.48, 0.62, 0.72, 0.78, 0.85, 0.88, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95),
    AGREED: (0.58, 0.75, 0.86, 0.90, 0.92, 0.93, 0.95),
    LATEST: (0.12, 0.25, 0.30),
}
"""For each kind, how often the next token was right, by the length of the match.

The last value holds for all longer matches; of the first two kinds, a match twice as long is half
as often wrong. Smoothed counts of 3,763 ids that a real model answered to prompts of seven kinds;
Polish prose repeats itself less often: lab/results/copy-priors.md.
"""

_TRUST_RATE = 0.1

RESUMED = (0.3, 0.5, 0.7, 0.85, 0.88)
"""How often the next id of a passage was right that is followed through a difference, by how many
ids agreed since. Counted on edits of Python and Markdown, and on both as they are."""

_JOINS = 6
"""Ids of a match from which on its passage is followed through differences."""

_REACH, _LONGEST_GAP = 24, 16
"""How far beyond a difference the text is searched for where it meets again, and for how long."""

_MET = 2
"""Ids that have to agree before a difference is over."""

_RESUMED = "resumed"
"""The situation of trust in passages. In copies it is whether they are of the prompt."""


class Passage(NamedTuple):
    """An earlier passage that is followed, through differences too.

    left: where the text left it, as an index of the earlier text; 0 if none is followed. next: the
    index of the id that is expected. run: how many ids agreed since the latest difference. gap: how
    many ids came since the text left it.
    """

    left: int = 0
    next: int = 0
    run: int = 0
    gap: int = 0


_NO_PASSAGE = Passage()


class MatchState(NamedTuple):
    """Where reading a text has led: the longest match, and the passage that is followed."""

    place: Place = START
    passage: Passage = _NO_PASSAGE


_NOWHERE = MatchState()


class ContextCopy:
    """A source of a hybrid that copies from prompt and output.

    One object serves one conversation, so nothing leaks into another.
    outputs: another text to copy from instead, such as earlier outputs; it is not changed.
    Cost: about 5 µs per token of context, 1 µs per call of `expect`.
    """

    def __init__(self, outputs: SuffixAutomaton | None = None) -> None:
        self.automaton = SuffixAutomaton() if outputs is None else outputs
        self._grows = outputs is None
        self.name = SOURCE if self._grows else SESSION
        self._trust = Trust(rate=_TRUST_RATE)
        self._reading = MatchState()
        self._seen = self._prompt = 0

    def follow(self, ids: Sequence[TargetId]) -> MatchState:
        automaton = self.automaton
        if self._grows and not self._prompt:
            self._prompt = len(ids)
        for token in ids[self._seen :]:
            place, passage = self._reading
            if place.length and len(automaton.ids) >= self._prompt:
                self.learn(automaton.occurrence(place), token)
            if passage.run and (resumed := self.resumed(passage)) is not None:
                guess = resumed[1], self._trust.of[_RESUMED], resumed[0] == token
                self._trust.learn([guess])
            if self._grows:
                automaton.append(token)
                place = automaton.longest_repeat()
            else:
                place = automaton.advance(place, token)
            self._reading = self._after(passage, place, token)
        self._seen = len(ids)
        return self._reading

    def advance(self, state: MatchState, token: TargetId) -> MatchState:
        return self._after(state.passage, self.automaton.advance(state.place, token), token)

    def expect(self, state: MatchState) -> Sequence[tuple[TargetId, float]]:
        """What followed the latest occurrence, and what comes next in the passage."""
        if state is _NOWHERE:  # as after most ids that a dictionary or a model guesses
            return ()
        place, passage = state
        occurrence = self.automaton.occurrence(place)
        copied = None if occurrence is None else self.copied(occurrence)
        resumed = self.resumed(passage) if passage.run else None
        found = [one for one in (copied, resumed) if one is not None]
        found.sort(key=itemgetter(1), reverse=True)
        if len(found) > 1 and found[0][0] == found[1][0]:
            found.pop()
        return [(token, log(p / (1.0 - p))) for token, p in found if token != SEPARATOR]

    def resumed(self, passage: Passage) -> tuple[TargetId, float] | None:
        """What comes next in the passage that is followed, once it agrees again."""
        at, run, text = passage.next, passage.run, self.automaton.ids
        if not 0 < run < _JOINS or at >= len(text):
            return None
        return text[at], self._trust.calibrated(RESUMED[run - 1], _RESUMED)

    def learn(self, occurrence: Occurrence | None, token: TargetId) -> None:
        """Compare `token` with what the match before it would have predicted."""
        if occurrence is not None and (copied := self.copied(occurrence)) is not None:
            shift = self._trust.of[occurrence.latest <= self._prompt]
            self._trust.learn([(copied[1], shift, copied[0] == token)])

    def _after(self, passage: Passage, place: Place, token: TargetId) -> MatchState:
        """The state after one more id, which made the longest match `place`."""
        if passage.left or place.length >= _JOINS:
            return MatchState(place, self._followed(passage, place, token))
        return MatchState(place) if place.length else _NOWHERE

    def _followed(self, passage: Passage, place: Place, token: TargetId) -> Passage:
        """The passage after one more id, which made the longest match `place`."""
        left, following, run, gap = passage
        text = self.automaton.ids
        if place.length >= _JOINS and place.length > run + 1:
            occurrence = self.automaton.occurrence(place)
            assert occurrence is not None, "it has a length"
            return Passage(occurrence.latest, occurrence.latest, place.length, 0)
        if following < len(text) and text[following] == token:
            run, following = run + 1, following + 1
            if run >= _MET:
                return Passage(following, following, run, 0)
            return Passage(left, following, run, gap + 1)
        if gap >= _LONGEST_GAP:
            return _NO_PASSAGE
        # Where one id stands for another, the texts meet `gap + 1` ids further on; look around it.
        gap += 1
        ahead = text[left : left + _REACH]
        if token in ahead:
            straight = gap - 1
            at = min(
                (i for i, other in enumerate(ahead) if other == token),
                key=lambda i: abs(i - straight),
            )
            return Passage(left, left + at + 1, 1, gap)
        return Passage(left, left + gap, 0, gap)

    def copied(self, occurrence: Occurrence) -> tuple[TargetId, float] | None:
        """What followed the latest occurrence, and how probably it is right now; nothing for a
        match that ends with the text."""
        length, _, latest = occurrence
        text = self.automaton.ids
        if latest == len(text):
            return None
        return text[latest], self.probability(self.kind(occurrence), length, latest)

    def kind(self, occurrence: Occurrence) -> int:
        """The kind of a match that something follows."""
        _, first, latest = occurrence
        text = self.automaton.ids
        return ONLY if first == latest else AGREED if text[first] == text[latest] else LATEST

    def probability(self, kind: int, length: int, end: int) -> float:
        """How probably the token copied after a match of `length` (1 or more), which ends after
        `end` ids, is right: a prior, shifted by what copies from the prompt or the output were."""
        prior = PRIORS[kind]
        longest = len(prior)
        right = prior[length - 1] if length <= longest else prior[-1]
        if length > longest and kind != LATEST:
            right = 1.0 - (1.0 - right) * longest / length
        return self._trust.calibrated(right, end <= self._prompt)


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
