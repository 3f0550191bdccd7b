"""Draft models and sources for tests of the controller, which say what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log

from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.rounds import Context, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

Find = Callable[[Context, int], TokenTree[TargetId]]


class ScriptedModel(ModelDrafter):
    """A draft model that finds what a function says, given the context and the steps."""

    def __init__(self, find: Find, steps: int = 3) -> None:
        self.passes = 0
        super().__init__(self, steps, 0)
        self._found = find

    def find(self, context: Context, steps: int) -> Proposal:
        self.passes += steps
        tree = self._found(context, steps)
        if not tree.probabilities:
            likely = self._acceptance.probabilities(len(tree))
            tree = replace(tree, probabilities=tuple(likely))
        return Proposal(tree=tree)


class ScriptedSource:
    """A free source that expects one id everywhere; None for nothing. asked: how often it was."""

    def __init__(
        self,
        token: int | None,
        probability: float = 0.5,
        on_asked: Callable[[], object] = lambda: None,
    ) -> None:
        self.name, self.asked = "source", 0
        self._token, self._odds = token, log(probability / (1.0 - probability))
        self._on_asked = on_asked

    def follow(self, ids: Sequence[TargetId]) -> int:
        self.asked += 1
        self._on_asked()
        return 0

    def advance(self, state: int, token: TargetId) -> None:
        return None

    def expect(self, state: int) -> list[tuple[TargetId, float]]:
        return [] if self._token is None else [(TargetId(self._token), self._odds)]
