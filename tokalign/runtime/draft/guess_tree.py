"""Guesses of several sources in one tree: equal tokens merged, every token with one probability.

At each node the sources vote. Votes for one token are joined as if they were independent
(noisy-or), and the result is corrected by what has turned out in the same *situation*: who voted
for the token and who for another one (`Trust`). That is where trust in a source is learned, as the
situation of a lone source is the source itself, and what makes up for sources that depend on one
another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.proposal import Guess
from tokalign.tokenizer.vocabulary import TargetId

CONTESTED = {"dictionary": 0.45}
"""What the odds of a token begin with where another source expects another one; other sources:
`_LESS`. A dictionary knows the language and loses to what knows the text. Measured like `PRIORS` of
`context_copy.py`."""

_LESS = 0.8

Judged = tuple[TargetId, float, Hashable, float]
"""A token, its probability, its situation, and what the odds of that one begin with."""


class Path(NamedTuple):
    """One way through the tree: for each id its probability, and who was surest of it."""

    ids: tuple[TargetId, ...] = ()
    probabilities: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()


class Node:
    """What may follow one path: for each next id who expects it, how surely, and what is behind."""

    __slots__ = ("next", "votes")

    def __init__(self) -> None:
        self.votes: dict[TargetId, dict[str, float]] = {}
        self.next: dict[TargetId, Node] = {}

    def vote(self, token: TargetId, probability: float, source: str) -> Node:
        """Count a vote, the surest of each source; the node behind the token."""
        votes = self.votes.get(token)
        if votes is None:
            self.votes[token] = {source: probability}
            behind = self.next[token] = Node()
            return behind
        votes[source] = max(probability, votes.get(source, 0.0))
        return self.next[token]

    def judged(self, trust: Trust) -> list[Judged]:
        """Every token that is expected here."""
        if len(self.votes) == 1:  # by far the usual case: nobody contradicts
            [(token, votes)] = self.votes.items()
            situation = _voters(votes)
            return [(token, trust.calibrated(_noisy_or(votes), situation), situation, 1.0)]
        return [self._judge(token, trust) for token in self.votes]

    def _judge(self, token: TargetId, trust: Trust) -> Judged:
        votes = self.votes[token]
        others = {s for voted in self.votes.values() for s in voted if s not in votes}
        situation = _voters(votes), frozenset(others)
        start = max(CONTESTED.get(source, _LESS) for source in votes) if others else 1.0
        return token, trust.calibrated(_noisy_or(votes), situation, start), situation, start


class GuessTree:
    """The guesses of one round. Cost: 10-20 µs a round."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._root = Node()

    def add(self, guess: Guess, behind: Sequence[TargetId] = ()) -> None:
        """Merge a guess in, `behind` a path of the tree."""
        node = self._root
        for token in behind:
            node = node.next[token]
        for token, probability in zip(guess.ids, guess.probabilities, strict=True):
            node = node.vote(token, probability, guess.source)

    def paths(self) -> list[Path]:
        """Every way from the root to a leaf; an empty one if nobody guesses."""
        found: list[Path] = []
        self._collect(self._root, Path(), found)
        return found

    def learn(self, came: Sequence[TargetId]) -> None:
        """Check every guess against what came, as far as it follows the tree."""
        node: Node | None = self._root
        for token in came:
            if node is None:
                return
            for guessed, said, situation, start in node.judged(self._trust):
                self._trust.learn(said, situation, right=guessed == token, start=start)
            node = node.next.get(token)

    def _collect(self, node: Node, path: Path, found: list[Path]) -> None:
        """Go on to the next fork, and from there along each branch."""
        ids, probabilities, sources = list(path.ids), list(path.probabilities), list(path.sources)
        while len(judged := node.judged(self._trust)) == 1:
            token, probability, *_ = judged[0]
            ids.append(token)
            probabilities.append(probability)
            sources.append(_surest(node.votes[token]))
            node = node.next[token]
        if not judged:
            found.append(Path(tuple(ids), tuple(probabilities), tuple(sources)))
        for token, probability, *_ in judged:
            branch = Path(
                (*ids, token), (*probabilities, probability), (*sources, _surest(node.votes[token]))
            )
            self._collect(node.next[token], branch, found)


def _voters(votes: dict[str, float]) -> Hashable:
    """Who votes, in whatever order: a lone source by its name."""
    return next(iter(votes)) if len(votes) == 1 else frozenset(votes)


def _surest(votes: dict[str, float]) -> str:
    return max(votes, key=votes.__getitem__)


def _noisy_or(votes: dict[str, float]) -> float:
    """The probability that at least one of several independent voters is right."""
    all_wrong = 1.0
    for probability in votes.values():
        all_wrong *= 1.0 - probability
    return 1.0 - all_wrong
