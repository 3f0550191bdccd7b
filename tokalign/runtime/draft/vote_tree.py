"""The guesses of several sources merged in one tree, with one probability for every token.

At each node the sources vote. The votes for one token are combined as if they were independent
(noisy-or), and `Trust` corrects the result by what has come in the same *situation*: which sources
voted for the token, and which for another one. The correction makes up for sources that depend on
one another. The situation of a lone source is the source itself, so trust in single sources is
learned here too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from tokalign.runtime.draft.trust import Trust
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

CONTESTED = {"dictionary": 0.45}
"""Factor on the odds of a source's token where another source expects another token.

It holds before anything is learned. A dictionary knows the language, and loses to a source that
knows the text. Measured like the `PRIORS` of `context_copy.py`.
"""

_CONTESTED_OTHERS = 0.8
"""The same for the sources that `CONTESTED` does not name."""

_Path = list[tuple[TargetId, float, str]]
"""Token, probability and surest source of each step from the root."""


class Judgement(NamedTuple):
    """One token that is expected at a node.

    start: the factor on its odds in this situation before anything is learned.
    """

    token: TargetId
    probability: float
    situation: Hashable
    start: float


class Node:
    """What may follow one path: for each next id the sources' votes and the node after it."""

    __slots__ = ("next", "votes")

    def __init__(self) -> None:
        self.votes: dict[TargetId, dict[str, float]] = {}
        self.next: dict[TargetId, Node] = {}

    def vote(self, token: TargetId, probability: float, source: str) -> Node:
        """Count a vote; of several by one source the highest counts. Returns the next node."""
        votes = self.votes.get(token)
        if votes is None:
            self.votes[token] = {source: probability}
            after = self.next[token] = Node()
            return after
        votes[source] = max(probability, votes.get(source, 0.0))
        return self.next[token]

    def judged(self, trust: Trust) -> list[Judgement]:
        """Every token that is expected here."""
        if len(self.votes) == 1:  # by far the usual case, in which no source contradicts
            [(token, votes)] = self.votes.items()
            situation = _voters(votes)
            return [Judgement(token, trust.calibrated(_noisy_or(votes), situation), situation, 1.0)]
        return [self._judge(token, trust) for token in self.votes]

    def _judge(self, token: TargetId, trust: Trust) -> Judgement:
        votes = self.votes[token]
        others = {s for voted in self.votes.values() for s in voted if s not in votes}
        situation = _voters(votes), frozenset(others)
        start = max(map(_contested, votes)) if others else 1.0
        probability = trust.calibrated(_noisy_or(votes), situation, start)
        return Judgement(token, probability, situation, start)


class VoteTree:
    """The guesses of one round. Cost: 10-20 µs a round."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._root = Node()

    def add(self, chain: TokenTree, after: Sequence[TargetId] = ()) -> None:
        """Merge in a chain that follows the ids `after`, which are a path of the tree."""
        node = self._root
        for token in after:
            node = node.next[token]
        guessed = zip(chain.ids, chain.probabilities, chain.sources, strict=True)
        for token, probability, source in guessed:
            node = node.vote(token, probability, source)

    def chains(self) -> list[TokenTree]:
        """Every path from the root to a leaf; one empty chain if no source guesses."""
        return [
            TokenTree(
                tuple([token for token, _, _ in path]),
                tuple(range(-1, len(path) - 1)),
                tuple([source for _, _, source in path]),
                tuple([probability for _, probability, _ in path]),
            )
            for path in self._paths(self._root, [])
        ]

    def learn(self, came: Sequence[TargetId]) -> None:
        """Compare the guesses with the ids that came, as far as these follow the tree."""
        node: Node | None = self._root
        for token in came:
            if node is None:
                return
            for guessed, said, situation, start in node.judged(self._trust):
                self._trust.learn(said, situation, right=guessed == token, start=start)
            node = node.next.get(token)

    def _paths(self, node: Node, path: _Path) -> Iterator[_Path]:
        """The paths through `node`, which `path` leads to."""
        path = [*path]
        while len(judged := node.judged(self._trust)) == 1:
            token, probability, *_ = judged[0]
            path.append((token, probability, _surest(node.votes[token])))
            node = node.next[token]
        if not judged:
            yield path
        for token, probability, *_ in judged:
            step = token, probability, _surest(node.votes[token])
            yield from self._paths(node.next[token], [*path, step])


def _voters(votes: dict[str, float]) -> Hashable:
    """The set of sources that vote; a lone source stands for itself."""
    return next(iter(votes)) if len(votes) == 1 else frozenset(votes)


def _contested(source: str) -> float:
    """By the kind of a source: `dictionary:pl` is a dictionary."""
    return CONTESTED.get(source.partition(":")[0], _CONTESTED_OTHERS)


def _surest(votes: dict[str, float]) -> str:
    return max(votes, key=votes.__getitem__)


def _noisy_or(votes: dict[str, float]) -> float:
    """The probability that at least one of several independent voters is right."""
    all_wrong = 1.0
    for probability in votes.values():
        all_wrong *= 1.0 - probability
    return 1.0 - all_wrong
