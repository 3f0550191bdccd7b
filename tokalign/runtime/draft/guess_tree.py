"""Guesses of several sources in one tree: equal tokens merged, every token with one probability.

At each node the sources vote. Votes for one token are joined as if they were independent
(noisy-or), and the result is shifted by what has turned out in the same *situation*: who voted for
the token and who for another one. That corrects what independence gets wrong, and is where trust
in a source is learned; the situation of a lone source is the source itself.
Sources and why shifts: `calibration.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokalign.runtime.calibration import Trust
from tokalign.runtime.proposal import Guess
from tokalign.vocab import TargetId

CONTESTED = {"dictionary": -0.8}
"""Shifts to begin with where another source expects another token; other sources': `_LESS`.
A dictionary knows the language and loses to what knows the text. Measured like `PRIORS` of
`context_copy.py`."""

_LESS = -0.2

Situation = tuple[frozenset[str], frozenset[str]]


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
        votes = self.votes.setdefault(token, {})
        votes[source] = max(probability, votes.get(source, 0.0))
        return self.next.setdefault(token, Node())

    def judged(self, trust: Trust) -> Iterator[tuple[TargetId, float, Situation, float]]:
        """For each token its probability, its situation, and the shift that this starts from."""
        everyone = frozenset(source for votes in self.votes.values() for source in votes)
        for token, votes in self.votes.items():
            voted = frozenset(votes)
            situation = voted, everyone - voted
            start = _start(*situation)
            yield token, trust.calibrated(_noisy_or(votes), situation, start), situation, start


class GuessTree:
    """The guesses of one round. Cost: about 3 µs per node."""

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
        node = self._root
        for token in came:
            for guessed, said, situation, start in list(node.judged(self._trust)):
                self._trust.learn(said, situation, right=guessed == token, start=start)
            if token not in node.next:
                return
            node = node.next[token]

    def _collect(self, node: Node, path: Path, found: list[Path]) -> None:
        if not node.votes:
            found.append(path)
        for token, probability, _, _ in node.judged(self._trust):
            votes = node.votes[token]
            further = Path(
                (*path.ids, token),
                (*path.probabilities, probability),
                (*path.sources, max(votes, key=votes.__getitem__)),
            )
            self._collect(node.next[token], further, found)


def _start(voted: frozenset[str], others: frozenset[str]) -> float:
    """The shift of a situation that has not been met; of the most trusted voter."""
    return max(CONTESTED.get(source, _LESS) for source in voted) if others else 0.0


def _noisy_or(votes: dict[str, float]) -> float:
    """The probability that at least one of several independent voters is right."""
    all_wrong = 1.0
    for probability in votes.values():
        all_wrong *= 1.0 - probability
    return 1.0 - all_wrong
