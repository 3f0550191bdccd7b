"""Adjacency matrices with known rows, and confidences of the trees that are drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from lab.baselines.adjacency import Adjacency
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

Rows = Mapping[int, Sequence[tuple[int, float]]]
"""For each id its successors, each with its probability."""


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


def teach(
    adjacency: Adjacency,
    context: Sequence[int],
    tree: TokenTree[TargetId],
    rows: Sequence[Sequence[tuple[int, float]]],
) -> None:
    """Tell it of a pass over `tree` with these rows, whose entries may be in any order."""
    likely = np.array([[token for token, _ in row] for row in rows], dtype=np.uint32)
    logprobs = np.log(np.array([[p for _, p in row] for row in rows], dtype=np.float64))
    adjacency.learn(ids(*context), tree, likely, logprobs)


def adjacency_of(rows: Rows) -> Adjacency:
    """A matrix with these rows, all of one width."""
    adjacency = Adjacency(len(next(iter(rows.values()))))
    for token, row in rows.items():
        teach(adjacency, [token], EMPTY_TREE, [row])
    return adjacency


def confidences(tree: TokenTree[TargetId]) -> list[float]:
    """For each id the product of the probabilities on its path."""
    return [prod(tree.probabilities[j] for j in tree.path_to(i)) for i in range(len(tree))]


def ranks(tree: TokenTree[TargetId]) -> list[tuple[int, ...]]:
    """For each id its path of ranks: which child of its parent it is, and so on up."""
    seen: dict[int, int] = {}
    paths: list[tuple[int, ...]] = []
    for parent in tree.parents:
        rank = seen[parent] = seen.get(parent, -1) + 1
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths
