"""Copy what followed an earlier occurrence of the text's end, found by a suffix automaton.

The longest suffix of the text that occurred before is looked up, and its latest and its first
occurrence are both copied from. How far a copy is right depends on the length of the match, and
just as much on whether the two occurrences went on alike. The token at depth i of a copy continues
a match that is i tokens longer. `PRIORS` says how often that was right in Polish prose. As the
context grows, prompt included, every token is compared with what the match before it would have
predicted, and `Trust` shifts all these probabilities accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice, repeat, takewhile

from tokalign.runtime.draft.suffix_automaton import START, Occurrence, SuffixAutomaton
from tokalign.runtime.draft.trust import Trust
from tokalign.tables.token_tree import TokenTree
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
from each training corpus of the shared data.
"""

_TRUST_RATE = 0.1

_LEAST_REACHED = 0.003
"""A copy ends where the probability that all of it is right falls below this."""


class ContextCopy:
    """A source of a hybrid that copies from prompt and output.

    One object serves one conversation, so nothing leaks into another.
    outputs: another text to copy from instead, such as earlier outputs; it is not changed.
    Cost: about 5 µs per token of context, 15 µs per call of `guesses`.
    """

    def __init__(self, outputs: SuffixAutomaton | None = None) -> None:
        self._automaton = SuffixAutomaton() if outputs is None else outputs
        self._grows = outputs is None
        self._reliability = CopyReliability()
        self._place = START
        self._seen = 0

    def begin(self, ids: Sequence[TargetId]) -> None:
        """A turn begins with this context. Unless that extends the text so far, read it anew.

        What was learned about copies stays.
        """
        known = self._automaton.ids
        if list(ids[: len(known)]) != known:
            self._automaton, self._place, self._seen = SuffixAutomaton(), START, 0

    def follow(self, ids: Sequence[TargetId]) -> None:
        """See `hybrid.Source`."""
        automaton = self._automaton
        for token in ids[self._seen :]:
            self._reliability.learn(automaton.ids, automaton.occurrence(self._place), token)
            if self._grows:
                automaton.append(token)
                self._place = automaton.longest_repeat()
            else:
                self._place = automaton.advance(self._place, token)
        self._seen = len(ids)

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> list[TokenTree]:
        """See `hybrid.Source`."""
        automaton, place = self._automaton, self._place
        for token in ahead:
            place = automaton.advance(place, token)
        occurrence = automaton.occurrence(place)
        if occurrence is None:
            return []
        after, source = (ahead, SOURCE) if self._grows else ((), SESSION)
        return self._reliability.guesses(automaton.ids, after, occurrence, limit, source)


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
        """Compare `token` with what the match before it would have predicted."""
        if occurrence is None:
            return
        length, first, latest = occurrence
        following = text[latest]
        kind = ONLY if first == latest else AGREED if text[first] == following else LATEST
        said = self.probability(kind, length)
        self._trust.learn(said, None, right=following == token)

    def guesses(
        self,
        text: Sequence[TargetId],
        ahead: Sequence[TargetId],
        occurrence: Occurrence,
        limit: int,
        source: str,
    ) -> list[TokenTree]:
        """What followed the latest occurrence, and what followed the first if that differs.

        Both are chains of at most `limit` ids.
        """
        length, first, latest = occurrence
        latest_chain = _copied(text, latest, ahead, limit)
        if first == latest:
            return self._guess(latest_chain, repeat(ONLY), length, source)
        first_chain = _copied(text, first, ahead, limit)
        pairs = zip(latest_chain, first_chain, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        agreed = [AGREED] * same
        found = self._guess(latest_chain, _kinds(agreed, LATEST), length, source)
        if found and same < len(found[0].ids):
            found += self._guess(first_chain, _kinds(agreed, FIRST), length, source)
        return found

    def _guess(
        self, ids: Sequence[TargetId], kinds: Iterable[int], length: int, source: str
    ) -> list[TokenTree]:
        """The chain up to where it is hardly ever right; no chain if there are no ids."""
        probabilities, reached = [], 1.0
        for depth, (_, kind) in enumerate(zip(ids, kinds, strict=False)):
            probabilities.append(self.probability(kind, length + depth))
            reached *= probabilities[-1]
            if reached < _LEAST_REACHED:
                break
        kept = ids[: len(probabilities)]
        return [TokenTree.chain(kept, source, probabilities)] if kept else []


def _copied(
    text: Sequence[TargetId], start: int, ahead: Sequence[TargetId], limit: int
) -> tuple[TargetId, ...]:
    """`limit` ids of the text from index `start` on, repeated where the text ends before that.

    Example: of "x a b a b" from index 3 on: a b a b a b ...
    """
    copied: Iterable[TargetId] = text[start : start + limit]
    if start + limit > len(text):
        copied = islice(cycle([*text[start:], *ahead]), limit)
    return tuple(takewhile(lambda i: i != SEPARATOR, copied))


def _kinds(agreed: Sequence[int], parted: int) -> Iterator[int]:
    """The kind of each id of a chain: agreed, then where the two chains part, then alone."""
    return chain(agreed, (parted,), repeat(ONLY))
