"""Ids and trees of ids, written short, and what occurred before by search."""

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


def ends_of(part: Sequence[int], text: Sequence[int], last: int) -> list[int]:
    """After how many ids of `text` each occurrence of `part` ends, up to `last` of them."""
    size = len(part)
    return [end for end in range(size, last + 1) if text[end - size : end] == part]


def longest_match(whole: Sequence[int], text: Sequence[int], last: int) -> tuple[int, list[int]]:
    """Length of the longest end of `whole` that occurs in the text, and where it ends there."""
    for size in range(len(whole), 0, -1):
        if ends := ends_of(whole[-size:], text, last):
            return size, ends
    return 0, []
