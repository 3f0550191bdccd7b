"""UniSpec's tree: algorithm 1 by hand, and what holds of every tree that it grows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from adjacencies import Rows, adjacency_of, confidences, ids, teach
from hypothesis import given
from hypothesis import strategies as st

from lab.baselines.adjacency import Adjacency
from lab.baselines.unispec import (
    ABLATED,
    DEPTH,
    PUBLISHED_ACCEPTANCE,
    THRESHOLD,
    Expansion,
    UniSpecDrafter,
    draft_size,
    grow,
)
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.drafting import ASSUMED_COSTS
from tokalign.runtime.rounds import Context
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.vocabulary import TargetId

ROWS: Rows = {
    1: [(2, 0.6), (3, 0.3)],
    2: [(4, 0.5), (1, 0.04)],
    3: [(5, 0.9), (2, 0.1)],
    4: [(1, 0.8), (2, 0.1)],
}


def test_the_surest_ids_of_all_levels_are_drafted() -> None:
    """After 1: 2 (0.6), 3 (0.3), 2-4 (0.3), 3-5 (0.27), 2-4-1 (0.24), 2-4-1-2 (0.144), ..."""
    adjacency, after = adjacency_of(ROWS), ids(9, 1)
    tree = grow(adjacency, after, 6)
    assert tree.ids == (2, 3, 4, 5, 1, 2)
    assert tree.parents == (-1, -1, 0, 1, 2, 4)
    assert confidences(tree) == pytest.approx([0.6, 0.3, 0.3, 0.27, 0.24, 0.144])
    assert set(tree.sources) == {"unispec"}
    assert grow(adjacency, after, 3).ids == (2, 3, 4)
    assert grow(adjacency, after, 6, Expansion(depth=2)).ids == (2, 3, 4, 1, 5, 2)


def test_the_threshold_keeps_unsure_ids_from_being_expanded() -> None:
    """3 has 0.3, so that 5 and 2 follow it under a threshold of 0.2 and not under one of 0.5."""
    adjacency, after = adjacency_of(ROWS), ids(9, 1)
    assert grow(adjacency, after, 99, Expansion(depth=2, threshold=0.2)).ids == (2, 3, 4, 1, 5, 2)
    assert grow(adjacency, after, 99, Expansion(depth=2, threshold=0.5)).ids == (2, 3, 4, 1)


def test_what_else_was_likely_for_the_last_id_may_come_next() -> None:
    """The pass before chose 1 where it also found 3 and 7 likely."""
    adjacency = Adjacency(3)
    for token, row in ROWS.items():
        teach(adjacency, [token], EMPTY_TREE, [[*row, (6, 1e-3)]])
    teach(adjacency, [8, 9], EMPTY_TREE, [[(1, 0.5), (3, 0.35), (7, 0.1)]])
    tree = grow(adjacency, ids(8, 9, 1), 99, Expansion(depth=1))
    assert tree.ids == (2, 3, 6, 7)  # 1 was chosen; 3 counts once, as a successor
    assert tree.probabilities == pytest.approx((0.6, 0.3, 1e-3, 0.1))
    without = grow(adjacency, ids(8, 9, 1), 99, Expansion(depth=1, next_next=False))
    assert without.ids == (2, 3, 6)


def test_without_scores_ids_are_taken_by_rank_and_level() -> None:
    tree = grow(adjacency_of(ROWS), ids(9, 1), 5, Expansion(scored=False))
    assert tree.ids == (2, 3, 4, 1, 5)
    assert tree.parents == (-1, -1, 0, 0, 1)


@st.composite
def matrices(draw: st.DrawFn) -> Adjacency:
    """Three successors of some of ten ids; probabilities may tie."""
    shares = st.sampled_from([0.9, 0.5, 0.3, 0.2, 0.05, 0.01])
    known = draw(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
    successors = st.lists(st.integers(0, 9), min_size=3, max_size=3, unique=True)
    return adjacency_of({token: [(t, draw(shares)) for t in draw(successors)] for token in known})


@given(matrices(), st.integers(0, 9), st.integers(1, 40), st.sampled_from([0.0, 0.05, 0.3]))
def test_laws_of_every_tree(adjacency: Adjacency, last: int, size: int, threshold: float) -> None:
    """No id left out is surer than one kept; levels, expansion and size keep their bounds."""
    context, expansion = ids(last), Expansion(threshold=threshold)
    everything = grow(adjacency, context, 10_000, expansion)
    tree = grow(adjacency, context, size, expansion)
    assert len(tree) == min(size, len(everything))
    by_rank = sorted(confidences(everything), reverse=True)
    assert sorted(confidences(tree), reverse=True) == pytest.approx(by_rank[: len(tree)])
    assert max(everything.depths, default=1) <= DEPTH
    expanded = {parent for parent in everything.parents if parent >= 0}
    sure = confidences(everything)
    assert all(sure[i] >= threshold for i in expanded)
    for depth in range(1, DEPTH):
        assert sum(everything.depths[i] == depth for i in expanded) <= adjacency.width
    for index, parent in enumerate(tree.parents):
        assert parent < index
        row = adjacency.after(tree.ids[parent] if parent >= 0 else TargetId(last))
        assert row is not None
        assert tree.ids[index] in row.ids


def test_no_more_is_drafted_than_its_size_or_the_limit() -> None:
    adjacency, context = adjacency_of(ROWS), Context(ids(9, 1))
    drafter = UniSpecDrafter(adjacency, size=4)
    assert len(drafter.propose(context, 99).tree) == 4
    assert len(drafter.propose(context, 2).tree) == 2
    assert not drafter.propose(context, 0).tree
    assert not drafter.propose(Context(ids(8)), 9).tree
    chain = UniSpecDrafter(adjacency, size=4, branches=False).propose(context, 99).tree
    assert chain.chain_length == len(chain) == 4


@pytest.mark.parametrize("part", ABLATED)
def test_ablations_grow_other_trees(part: str) -> None:
    """Ten successors of every id: enough for a tree of any size."""
    rows = {i: [((i + 1 + n) % 40, 1 / (n + 2)) for n in range(10)] for i in range(40)}
    adjacency, size = adjacency_of(rows), draft_size(ASSUMED_COSTS)
    ablated = UniSpecDrafter(adjacency, size=size, expansion=ABLATED[part])
    tree = ablated.propose(Context(ids(0, 1)), 999).tree
    assert tree == grow(adjacency, ids(0, 1), size, ABLATED[part])
    assert tree != grow(adjacency, ids(0, 1), size)


def test_the_draft_size_follows_the_machine() -> None:
    """The calibration's extremes, and that a dearer row never means more of them."""
    assert THRESHOLD == 0.05
    assert draft_size(Costs(rows=(1.0, 1.0))) == max(PUBLISHED_ACCEPTANCE)
    assert draft_size(Costs(rows=(1.0, 2.0))) == 1
    sizes = [draft_size(Costs(rows=(1.0, 1.0 + row))) for row in (0, 0.003, 0.01, 0.03, 0.1, 0.3)]
    assert all(more >= less for more, less in pairwise(sizes))
    assert len(set(sizes)) > 3
