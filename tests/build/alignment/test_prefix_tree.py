"""A vocabulary as a tree of prefixes: the worked example, and brute force on small vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.alignment.merge_sites import NOWHERE, PrefixTree
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.tokenizer import Tokenizer

vocabularies: Any = st.lists(
    st.binary(min_size=1, max_size=4).map(lambda data: bytes(byte % 3 for byte in data)),
    min_size=1,
    max_size=20,
    unique=True,
)


def tree_of(tokens: list[bytes]) -> PrefixTree:
    return PrefixTree.of(TokenOrder.of(tokens, range(len(tokens))))  # type: ignore[arg-type]


def test_the_example_of_the_module(bielik: Tokenizer[Any]) -> None:
    order = bielik.bpe.order
    tree = PrefixTree.of(order)
    first = order.spelled.index(b" Polish")
    neighbours = [b" Polish", b" Polit", b" Political", b" Politics", b" Politiker", b" Poll"]
    assert order.spelled[first : first + 6] == neighbours
    for begin, prefix in ((1, b" Polit"), (2, b" Politi")):
        [node] = tree.covered(np.arange(first + begin, first + 5)).tolist()
        assert tree.text(node) == prefix
        assert (tree.first[node], tree.last[node]) == (first + begin, first + 5)


@given(vocabularies)
def test_nodes_are_the_prefixes_and_parents_come_first(tokens: list[bytes]) -> None:
    tree = tree_of(tokens)
    every = sorted({token[:size] for token in tokens for size in range(1, len(token) + 1)})
    assert [tree.text(node) for node in range(len(tree))] == every
    for node, prefix in enumerate(every):
        range_ = tree.order.spelled[tree.first[node] : tree.last[node]]
        assert range_ == sorted(token for token in tokens if token.startswith(prefix))
        parent = int(tree.parent[node])
        assert parent < node
        assert parent == NOWHERE if len(prefix) == 1 else tree.text(parent) == prefix[:-1]
        children = tree.children(np.array([node])).tolist()
        assert [tree.text(child) for child in children] == [
            longer for longer in every if longer[:-1] == prefix
        ]


@given(vocabularies, st.sets(st.integers(0, 19)), st.integers(0, 3))
def test_covered_prefixes_are_the_shortest_that_have_no_other_token(
    tokens: list[bytes], chosen: set[int], more_than: int
) -> None:
    tree = tree_of(tokens)
    positions = sorted(at for at in chosen if at < len(tokens))
    inside = {tree.order.spelled[at] for at in positions}

    def is_covered(prefix: bytes) -> bool:
        return all(token in inside for token in tokens if token.startswith(prefix))

    every = sorted({token[:size] for token in tokens for size in range(1, len(token) + 1)})
    expected = [
        prefix
        for prefix in every
        if is_covered(prefix)
        and not (len(prefix) > 1 and is_covered(prefix[:-1]))
        and sum(token.startswith(prefix) for token in tokens) > more_than
    ]
    found = tree.covered(np.array(positions, dtype=np.int64), more_than=more_than)
    assert [tree.text(node) for node in found.tolist()] == expected
