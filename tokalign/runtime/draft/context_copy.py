"""Copy what followed an earlier occurrence of the text's end, found by a suffix automaton.

The longest suffix of the text that occurred before is looked up, and its latest and its first
occurrence are both copied from. How far a copy is right depends on the length of the match, and
just as much on whether the two occurrences went on alike. The token at depth i of a copy continues
a match that is i tokens longer. `PRIORS` says how often that was right in Polish prose. As the
context grows, prompt included, every token is compared with what the match before it would have
predicted, and `Trust` shifts all these probabilities accordingly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from tokalign.runtime.draft.mixing import Trust
from tokalign.runtime.draft.suffix_automaton import START, Occurrence, Place, SuffixAutomaton
from tokalign.tokenizer.vocabulary import TargetId

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
    Cost: about 5 µs per token of context, 15 µs per call of `guesses`.
    """

    def __init__(self, outputs: SuffixAutomaton | None = None) -> None:
        self._automaton = SuffixAutomaton() if outputs is None else outputs
        self._grows = outputs is None
        self.name = SOURCE if self._grows else SESSION
        self._reliability = CopyReliability()
        self._place = START
        self._seen = 0

    def follow(self, ids: Sequence[TargetId]) -> Place:
        """See `mixing.Source`."""
        automaton = self._automaton
        for token in ids[self._seen :]:
            self._reliability.learn(automaton.ids, automaton.occurrence(self._place), token)
            if self._grows:
                automaton.append(token)
                self._place = automaton.longest_repeat()
            else:
                self._place = automaton.advance(self._place, token)
        self._seen = len(ids)
        return self._place

    def advance(self, state: Place, token: TargetId) -> Place:
        """See `mixing.Source`."""
        return self._automaton.advance(state, token)

    def expect(self, state: Place) -> list[tuple[TargetId, float]]:
        """See `mixing.Source`."""
        occurrence = self._automaton.occurrence(state)
        if occurrence is None:
            return []
        return self._reliability.expected(self._automaton.ids, occurrence)


class CopyReliability:
    """How often a copy is right: a prior, shifted by what has been seen."""

    def __init__(self) -> None:
        self._trust = Trust(rate=_TRUST_RATE)

    def probability(self, kind: int, length: int) -> float:
        """The probability that the token copied after a match of `length` (1 or more) is right."""
        prior = PRIORS[kind]
        return self._trust.calibrated(prior[min(length, len(prior)) - 1], None)

    def learn(
        self, text: Sequence[TargetId], occurrence: Occurrence | None, token: TargetId
    ) -> None:
        """Compare `token` with what the match before it would have predicted.

        A match that ends with the text predicted nothing.
        """
        if occurrence is None or occurrence.latest == len(text):
            return
        length, first, latest = occurrence
        following = text[latest]
        kind = ONLY if first == latest else AGREED if text[first] == following else LATEST
        said = self.probability(kind, length)
        self._trust.learn(said, None, right=following == token)

    def expected(
        self, text: Sequence[TargetId], occurrence: Occurrence
    ) -> list[tuple[TargetId, float]]:
        """What followed the latest occurrence and the first, if that differs, with log-odds.

        A match that ends with the text has nothing after it.
        """
        length, first, latest = occurrence
        expected = []
        if latest < len(text):
            kind = ONLY if first == latest else AGREED if text[first] == text[latest] else LATEST
            expected.append((text[latest], self._log_odds(kind, length)))
        if first < latest and (latest == len(text) or text[first] != text[latest]):
            expected.append((text[first], self._log_odds(FIRST, length)))
        return [one for one in expected if one[0] != SEPARATOR]

    def _log_odds(self, kind: int, length: int) -> float:
        probability = self.probability(kind, length)
        return log(probability / (1.0 - probability))
