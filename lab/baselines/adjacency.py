"""The target's top-k logits after each id when it last verified it: one row per id.

Token Recycling (Luo et al., 2024) keeps the ranks of the most probable ids in an adjacency matrix
of one row per id of the vocabulary; UniSpec (Do, Le and Nguyen, 2026) adds a confidence matrix with
their probabilities. Here both are a mapping from ids that were verified, so a row that was never
written takes no room and proposes nothing; in the published matrices it proposes id 0.

`LogitStore` is tokalign's own store. It is keyed by up to three ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.draft.lookup import ranked
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Successors(NamedTuple):
    """The most probable next ids, the most probable first, and the probability of each."""

    ids: Sequence[TargetId]
    probabilities: Sequence[float]


class Adjacency:
    """The most probable successors of every id that was verified, from the latest row of each id.

    It serves one request, or all requests of one user where it is kept. Several threads may use it:
    a row is replaced as a whole.
    width: successors kept of each id; 8 in Token Recycling, 10 in UniSpec.
    Memory: about 0.9 kB per id that was verified, at a width of 10.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: dict[TargetId, Successors] = {}
        self._latest: tuple[int, TokenTree[TargetId], list[Successors]] = (0, EMPTY_TREE, [])

    def __len__(self) -> int:
        """How many ids have a row."""
        return len(self._rows)

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree[TargetId],
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        """See `rounds.RowStore`. Where an id occurs in several rows, the last one is kept."""
        likely, logprobs = ranked(likely, logprobs)
        sure = np.exp(logprobs)
        rows = [Successors(*row) for row in zip(likely.tolist(), sure.tolist(), strict=True)]
        self._rows.update(zip((ids[-1], *tree.ids), rows, strict=True))
        self._latest = len(ids), tree, rows

    def after(self, token: TargetId) -> Successors | None:
        """The target's top-k logits after an id; None if it never verified that id."""
        return self._rows.get(token)

    def beside_last(self, ids: Sequence[TargetId]) -> Successors | None:
        """What else the target found likely where it chose the last of `ids`.

        That row is of the latest pass. None if the latest pass was over another text.
        """
        begin, tree, rows = self._latest
        if not rows or not begin < len(ids):
            return None
        emitted = ids[begin:]
        path = tree.path_of(emitted[:-1])
        if len(path) < len(emitted) - 1:
            return None
        return rows[path[-1] + 1 if path else 0]


def most_probable_chain(
    adjacency: Adjacency, last: TargetId, limit: int, source: str
) -> TokenTree[TargetId]:
    """The most probable successor of each id in turn, for targets that cannot verify a tree."""
    ids: list[TargetId] = []
    probabilities: list[float] = []
    while len(ids) < limit and (found := adjacency.after(ids[-1] if ids else last)):
        ids.append(found.ids[0])
        probabilities.append(found.probabilities[0])
    return TokenTree.chain(ids, source, probabilities)
