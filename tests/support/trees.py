"""Ids and trees of ids, written short."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


def tree_of(numbers: Sequence[int], parents: Sequence[int]) -> TokenTree[TargetId]:
    return TokenTree(ids(*numbers), tuple(parents), ("test",) * len(numbers))


def paths(tree: TokenTree[Any]) -> dict[tuple[int, ...], float]:
    """The ids on the way to every id of a tree, with its probability."""
    found = {}
    for index, probability in enumerate(tree.probabilities or [1.0] * len(tree)):
        found[tuple(int(tree.ids[i]) for i in tree.path_to(index))] = probability
    return found


def reached(tree: TokenTree[Any]) -> dict[tuple[int, ...], float]:
    """For each path from a root the product of its probabilities."""
    of = paths(tree)
    return {path: prod(of[path[:end]] for end in range(1, len(path) + 1)) for path in of}
