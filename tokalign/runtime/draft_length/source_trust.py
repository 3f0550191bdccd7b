"""How probable the ids of a proposal are, by how often their sources were right so far."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.draft_length.estimates import Acceptance
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_RATE = 0.05


class SourceTrust:
    """Corrects the probabilities that sources state, and learns those that they do not state."""

    def __init__(self) -> None:
        self._trust = Trust(rate=_RATE)
        self._unstated: dict[str, Acceptance] = {}

    def probabilities(self, tree: TokenTree) -> list[float]:
        """For each id of a tree, the probability that it is right if its ancestors are."""
        if tree.probabilities:
            pairs = zip(tree.probabilities, tree.sources, strict=True)
            return [self._trust.calibrated(p, source) for p, source in pairs]
        return self._acceptance(tree).probabilities(len(tree))

    def learn(self, tree: TokenTree, came: Sequence[TargetId]) -> None:
        """Compare a tree with the ids that came in its place, as far as they tell about it."""
        path = tree.path_of(came)
        if not tree.probabilities:
            self._acceptance(tree).observe(min(len(tree), len(came)), len(path))
            return
        depths = {-1: 0} | {index: depth for depth, index in enumerate(path, start=1)}
        for index, (parent, source) in enumerate(zip(tree.parents, tree.sources, strict=True)):
            if depths.get(parent, len(came)) < len(came):
                said = self._trust.calibrated(tree.probabilities[index], source)
                self._trust.learn(said, source, right=index in depths)

    def _acceptance(self, tree: TokenTree) -> Acceptance:
        source = tree.sources[0] if tree else ""
        return self._unstated.setdefault(source, Acceptance())
