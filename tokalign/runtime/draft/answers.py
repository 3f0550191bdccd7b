"""What a model says in one round, as one more source of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log

from tokalign.runtime.draft.trust import LEAST
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Answer:
    """A draft model's answer as one more source. A state is the index of an id of its tree; -1 for
    the text, None after an id that is not in the tree. root: the state of the text so far."""

    def __init__(self, tree: TokenTree[TargetId]) -> None:
        self.root: int | None = -1
        self.name = tree.sources[0] if tree else "draft"
        self._expected: dict[int, list[tuple[TargetId, float]]] = {}
        self._next: dict[tuple[int, TargetId], int] = {}
        for index, (token, parent, probability) in enumerate(
            zip(tree.ids, tree.parents, tree.probabilities, strict=True)
        ):
            self._expected.setdefault(parent, []).append((token, log_odds(probability)))
            self._next.setdefault((parent, token), index)
        for siblings in self._expected.values():  # a tree has them in any order
            siblings.sort(key=_odds, reverse=True)

    def expect(self, state: int) -> Sequence[tuple[TargetId, float]]:
        """See `Source.expect`."""
        return self._expected.get(state, ())

    def after(self, state: int, token: TargetId) -> int | None:
        """The state after one more id."""
        return self._next.get((state, token))

    def follow(self, ids: Sequence[TargetId]) -> None:
        """These ids were emitted; what it still says is a guess at the next answer."""
        for token in ids:
            self.root = None if self.root is None else self.after(self.root, token)


class BlockAnswer(Answer):
    """A block drafter's answer: distributions of the coming positions, whatever comes between.

    A state is a position, -1 for the next one. So where another source knows a path, the block's
    probabilities join it at every depth, on every branch. Few trees reach the last positions, so
    log-odds are computed where they are asked for.
    positions: for each position its most probable ids, with log-probabilities.
    """

    def __init__(self, positions: Sequence[Sequence[tuple[TargetId, float]]], name: str) -> None:
        super().__init__(EMPTY_TREE)
        self.name = name
        self._listed, self._positions = [*positions], len(positions)

    def expect(self, state: int) -> Sequence[tuple[TargetId, float]]:
        if (known := self._expected.get(state)) is None:
            listed = self._listed[state + 1] if self._listed else ()
            known = [(token, _odds_of_log(logprob)) for token, logprob in listed]
            self._expected[state] = known
        return known

    def after(self, state: int, token: TargetId) -> int | None:
        return state + 1 if state + 2 < self._positions else None


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), where p is kept away from 0 and 1."""
    kept = min(max(probability, LEAST), 1.0 - LEAST)
    return log(kept / (1.0 - kept))


_LEAST_LOGPROB, _MOST_LOGPROB = log(LEAST), log(1.0 - LEAST)


def _odds_of_log(logprob: float) -> float:
    """The same of the probability with this logarithm."""
    kept = _LEAST_LOGPROB if logprob < _LEAST_LOGPROB else min(logprob, _MOST_LOGPROB)
    return kept - log(-expm1(kept))


def _odds(expected: tuple[TargetId, float]) -> float:
    return expected[1]
