"""An adjacency matrix keeps the latest row of every id, and finds the row of the last choice."""

from __future__ import annotations

import pytest
from adjacencies import adjacency_of, ids, teach
from hypothesis import given
from hypothesis import strategies as st

from lab.baselines.adjacency import Adjacency, most_probable_chain
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def test_rows_are_ranked_and_the_latest_one_counts() -> None:
    adjacency = Adjacency(3)
    assert adjacency.after(TargetId(5)) is None
    tree = TokenTree(ids(7, 8, 7), (-1, -1, 1), ("x",) * 3)
    row = [(1, 0.2), (2, 0.5), (3, 0.3)]
    teach(adjacency, [4, 5], tree, [row, [(9, 0.1), (8, 0.6), (7, 0.2)], row, row[::-1]])
    found = adjacency.after(TargetId(5))
    assert found is not None
    assert found.ids == [2, 3, 1]
    assert found.probabilities == pytest.approx([0.5, 0.3, 0.2])
    assert adjacency.after(TargetId(7)) == found  # the second 7 replaced the first
    assert adjacency.after(TargetId(4)) is None
    assert len(adjacency) == 3


@st.composite
def verified_trees(draw: st.DrawFn) -> tuple[TokenTree[TargetId], list[int]]:
    """A tree without equal siblings, and the target's choice after the text and after each id."""
    parents: list[int] = []
    tokens: list[int] = []
    for index in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, index - 1))
        siblings = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        token = draw(st.integers(0, 15).filter(lambda t, taken=siblings: t not in taken))
        parents.append(parent)
        tokens.append(token)
    tree = TokenTree(ids(*tokens), tuple(parents), ("x",) * len(tokens))
    choices = draw(st.lists(st.integers(0, 5), min_size=len(tree) + 1, max_size=len(tree) + 1))
    return tree, choices


@given(verified_trees())
def test_the_row_of_the_last_choice_is_found(
    verified: tuple[TokenTree[TargetId], list[int]],
) -> None:
    """Whatever part of the tree was accepted, as the committed ids alone tell."""
    tree, choices = verified
    adjacency = Adjacency(2)
    rows = [[(100 + row, 0.6), (200 + row, 0.4)] for row in range(len(tree) + 1)]
    teach(adjacency, [3, 9], tree, rows)
    path = tree.agreed_path(choices)
    chosen = [choices[row] for row in (0, *[index + 1 for index in path])]
    found = adjacency.beside_last([*ids(3, 9), *ids(*chosen)])
    assert found is not None
    assert found.ids[0] == 100 + (path[-1] + 1 if path else 0)


def test_nothing_is_said_of_another_text() -> None:
    adjacency = Adjacency(1)
    assert adjacency.beside_last(ids(1, 2)) is None
    teach(adjacency, [1, 2], TokenTree.chain(ids(3), "x"), [[(4, 1.0)], [(5, 1.0)]])
    assert adjacency.beside_last(ids(1, 2)) is None
    assert adjacency.beside_last(ids(1, 2, 9, 8)) is None
    assert adjacency.beside_last(ids(1, 2, 3, 8)) is not None


def test_a_chain_follows_the_first_ranks() -> None:
    rows = {1: [(2, 0.6), (3, 0.4)], 2: [(5, 0.3), (1, 0.7)], 3: [(1, 0.9), (2, 0.1)]}
    adjacency = adjacency_of(rows)
    chain = most_probable_chain(adjacency, TargetId(1), 4, "x")
    assert chain.ids == (2, 1, 2, 1)
    assert chain.parents == (-1, 0, 1, 2)
    assert chain.probabilities == pytest.approx((0.6, 0.7, 0.6, 0.7))
    assert most_probable_chain(adjacency, TargetId(8), 4, "x") == EMPTY_TREE
    assert not most_probable_chain(adjacency, TargetId(1), 0, "x")
