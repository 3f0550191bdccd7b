"""Trees of draft tokens: how they grow, and the trees of target ids that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_model
from trees import reached

from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.translation.growth import LEAST_NODE, Extension, ModelTree, Node, join
from tokalign.runtime.translation.read_ahead import Ahead
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

TEXT = [DraftId(i) for i in (1, 2, 3, 8, 8, 2)]


def node(probability: float, parent: int, ids: Sequence[int] | None) -> Node:
    found = None if ids is None else tuple(map(TargetId, ids))
    return Node(log(probability), parent, 0, DraftId(0), b"", found, goes_on=True)


@st.composite
def grown(draw: st.DrawFn) -> list[Node]:
    """Nodes whose children share their probability out among them, or a part of it."""
    nodes: list[Node] = []
    left: list[float] = []
    spare = 1.0
    for index in range(draw(st.integers(1, 10))):
        parent = draw(st.integers(-1, index - 1))
        room = spare if parent < 0 else left[parent]
        probability = room * draw(st.floats(0.05, 0.6))
        if parent < 0:
            spare -= probability
        else:
            left[parent] -= probability
        before = () if parent < 0 else nodes[parent].ids or ()
        # A longer text may merge the last id of the shorter one into another.
        kept = before[: len(before) - draw(st.integers(0, 1))]
        ids = (*kept, *draw(st.lists(st.integers(0, 2), min_size=1, max_size=2)))
        nodes.append(node(probability, parent, ids))
        left.append(probability)
    return nodes


@given(grown())
def test_an_id_is_reached_by_all_texts_that_have_it_on_their_path(nodes: list[Node]) -> None:
    expected: dict[tuple[int, ...], float] = {}
    for index, one in enumerate(nodes):
        own = exp(one.logprob) - sum(exp(n.logprob) for n in nodes if n.parent == index)
        assert one.ids is not None
        for end in range(1, len(one.ids) + 1):
            path = tuple(map(int, one.ids[:end]))
            expected[path] = expected.get(path, 0.0) + own
    found = reached(join(nodes, 1.0))
    assert set(found) <= set(expected)
    for path, probability in expected.items():
        if path in found:
            assert found[path] == pytest.approx(probability, abs=1e-9)
        else:
            assert probability <= LEAST_NODE + 1e-9


@given(grown())
def test_the_most_probable_chain_comes_first(nodes: list[Node]) -> None:
    tree = join(nodes, 1.0)
    found = reached(tree)
    chain = tuple(map(int, tree.first_chain.ids))
    for end in range(len(chain)):
        rivals = [found[path] for path in found if path[:-1] == chain[:end]]
        assert found[chain[: end + 1]] == max(rivals)


def test_a_text_that_would_change_committed_ids_leaves_its_probability_to_what_it_begins_with() -> (
    None
):
    tree = join([node(0.5, -1, [7]), node(0.3, 0, None), node(0.1, 0, [7, 8])], 0.8)
    assert tree.ids == (7, 8)
    assert tree.probabilities == pytest.approx((0.5 / 0.8, 0.1 / 0.5))


def test_a_text_that_is_absorbed_takes_its_probability_with_it() -> None:
    """The target would not have ended its token there if it had meant to go on like that."""
    absorbed = node(0.3, 0, None)._replace(absorbed=True, goes_on=False)
    tree = join([node(0.5, -1, [7]), absorbed, node(0.1, 0, [7, 8]), node(0.2, -1, [9])], 0.9)
    assert tree.ids == (7, 8, 9)
    assert tree.probabilities == pytest.approx((0.2 / 0.6, 0.1 / 0.2, 0.2 / 0.6))


def test_a_text_that_is_absorbed_for_certain_is_not_proposed() -> None:
    """All of what it begins with goes then, which may be several ids."""
    absorbed = node(1.0, 0, None)._replace(absorbed=True, goes_on=False)
    assert not join([node(1.0, -1, [7, 8]), absorbed], 1.0)


@given(grown(), st.integers(0, 6), st.integers(1, 3))
def test_the_most_probable_ids_of_a_tree_are_a_tree(
    nodes: list[Node], count: int, depth: int
) -> None:
    tree = join(nodes, 1.0)
    part = tree.most_probable(count, least=0.02, depth=depth)
    whole, kept = reached(tree), reached(part)
    assert len(part) <= count
    assert all(whole[path] == pytest.approx(p) for path, p in kept.items())
    possible = {path: p for path, p in whole.items() if len(path) <= depth and p >= 0.02}
    assert set(kept) <= set(possible)
    if len(kept) < count:
        assert set(kept) == set(possible)
    else:
        least = min(kept.values(), default=1.0)
        assert all(p <= least + 1e-12 for path, p in possible.items() if path not in kept)


def spell(before: Node, token: DraftId) -> Extension:
    """Draft ids are target ids here."""
    assert before.ids is not None
    return b"x", (*before.ids, TargetId(token)), True, False


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_nodes_have_the_probabilities_of_their_chains(steps: int) -> None:
    """Also where roots take back some of the text, and after that the session goes on."""
    model = random_model(vocabulary=32, seed=3)
    session = DraftModelSession(model)
    mx.eval(session.logits(TEXT, last=3))
    roots = [
        Node(log(0.4), -1, 0, DraftId(5), b"x", (TargetId(5),), goes_on=True),
        Node(log(0.3), -1, 2, DraftId(6), b"x", (TargetId(6),), goes_on=True),
        Node(log(0.2), -1, 1, DraftId(7), b"x", (TargetId(7),), goes_on=True),
        Node(log(0.1), -1, 0, DraftId(9), b"x", (TargetId(9),), goes_on=False),
    ]
    nodes = ModelTree(session, TEXT, roots, steps, extend=spell, least=1e-6).finish()
    assert session.passes == 1 + steps
    assert any(one.parent >= len(roots) for one in nodes) == (steps > 1)
    for one in nodes[len(roots) :]:
        above = nodes[one.parent]
        expected = above.logprob + chain_logprobs(model, nodes, one.parent)[one.token]
        assert one.logprob == pytest.approx(expected, abs=1e-4)
    levels = [parent for parent, _ in pairwise(sorted({one.parent for one in nodes}))]
    assert all(nodes[parent].goes_on for parent in levels if parent >= 0)
    following = [*TEXT, DraftId(5), DraftId(4)]
    again = np.array(session.logits(following))
    np.testing.assert_allclose(again, DraftModelSession(model).logits(following), atol=2e-5)


@pytest.mark.parametrize("steps", [0, 2])
def test_what_was_read_ahead_is_gone_on_after_without_a_pass(steps: int) -> None:
    """As if a pass had gone on after it; the ids ahead may take back some of the text."""
    model = random_model(vocabulary=32, seed=3)
    session = DraftModelSession(model)
    [tail] = TEXT[-1:]
    tree = TokenTree((tail, *map(DraftId, (5, 4, 6))), (-1, 0, 1, -1), ("draft",) * 4)
    ahead = Ahead(tree, 1, (1, 2, 1))
    rows = session.start_shortlists(TEXT, 1, tree)
    known = session.listed(rows.ahead, 32)()
    roots = [
        Node(log(0.4), -1, 0, DraftId(5), b"x", (TargetId(5),)),
        Node(log(0.3), -1, 1, DraftId(6), b"x", (TargetId(6),)),
        Node(log(0.2), -1, 0, DraftId(7), b"x", (TargetId(7),)),
    ]
    grown = ModelTree(
        session, TEXT, roots, steps, extend=spell, least=1e-6, ahead=ahead, known=known
    )
    nodes = grown.finish()
    assert session.passes == 1 + steps
    gone_on = {parent for parent in range(len(nodes)) if any(n.parent == parent for n in nodes)}
    [read] = [n for n, one in enumerate(nodes) if one.parent == 0 and one.token == DraftId(4)]
    assert {0, 1, read} <= gone_on
    assert (gone_on == {0, 1, read}) == (steps == 0)
    for one in nodes[len(roots) :]:
        expected = nodes[one.parent].logprob + chain_logprobs(model, nodes, one.parent)[one.token]
        assert one.logprob == pytest.approx(expected, abs=1e-4)
    again = np.array(session.logits([*TEXT, DraftId(5), DraftId(4)]))
    fresh = DraftModelSession(model).logits([*TEXT, DraftId(5), DraftId(4)])
    np.testing.assert_allclose(again, fresh, atol=2e-5)


def chain_logprobs(model: Any, nodes: Sequence[Node], index: int) -> Any:
    """What a fresh session says after the chain that ends with this node."""
    path: list[Node] = []
    while index >= 0:
        path.append(nodes[index])
        index = nodes[index].parent
    ids = [*TEXT[: len(TEXT) - path[-1].back], *[one.token for one in reversed(path)]]
    row = DraftModelSession(model).logits(ids)
    return np.array(row - mx.logsumexp(row, axis=-1, keepdims=True))[0]
