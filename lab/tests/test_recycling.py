"""Token Recycling's fixed tree and SAM-Decoding's rule, as published."""

from __future__ import annotations

from random import Random

from adjacencies import adjacency_of, ids, ranks
from hypothesis import given
from hypothesis import strategies as st

from lab.baselines.adjacency import Adjacency
from lab.baselines.recycling import (
    PUBLISHED_SHAPE,
    SAM_COPIED,
    SamDrafter,
    TokenRecyclingDrafter,
    recycled_tree,
)
from tokalign.runtime.rounds import Context
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.vocabulary import TargetId

VOCABULARY = 40


def full_matrix(seed: int = 0, *, known: int = VOCABULARY) -> Adjacency:
    """Eight successors, in random order of probability, of each of the first `known` ids."""
    random = Random(seed)
    return adjacency_of(
        {
            token: [(t, 1 / (i + 2)) for i, t in enumerate(random.sample(range(VOCABULARY), 8))]
            for token in range(known)
        }
    )


def test_the_published_tree_has_80_places() -> None:
    """Spot checks of the published paths: what is in the tree and what is just outside."""
    paths = ranks(recycled_tree(full_matrix(), TargetId(0), PUBLISHED_SHAPE))
    assert [sum(len(path) == n for path in paths) for n in range(1, 8)] == [8, 21, 25, 15, 8, 3, 0]
    inside = {(7, 0), (3, 1), (2, 2), (0, 7), (1, 3), (5, 0, 0), (0, 7, 0), (1, 0, 1), (1, 1, 0)}
    inside |= {(0, 0, 1, 1), (3, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0)}
    assert inside <= set(paths)
    assert not {(8,), (4, 1), (6, 0, 0), (1, 2, 0), (4, 0, 0, 0), (0, 0, 2, 0, 0)} & set(paths)
    assert len(set(paths)) == 80


@given(st.integers(0, 20), st.integers(1, VOCABULARY), st.integers(0, VOCABULARY - 1))
def test_every_place_has_the_id_of_its_ranks(seed: int, known: int, last: int) -> None:
    """Also where some ids were never verified, below which places stay empty."""
    adjacency = full_matrix(seed, known=known)
    tree = recycled_tree(adjacency, TargetId(last), PUBLISHED_SHAPE)
    for path, token in zip(ranks(tree), tree.ids, strict=True):
        reached = TargetId(last)
        for rank in path:
            row = adjacency.after(reached)
            assert row is not None
            reached = row.ids[rank]
        assert reached == token
    if known == VOCABULARY:
        assert len(tree) == 80
    if last >= known:
        assert tree == EMPTY_TREE


def test_fewer_ids_are_the_first_levels() -> None:
    adjacency, context = full_matrix(), Context(ids(6, 1))
    whole = TokenRecyclingDrafter(adjacency).propose(context, 200).tree
    assert len(whole) == 80
    assert TokenRecyclingDrafter(adjacency, max_tokens=53).propose(context, 200).tree == (
        whole.head(53)
    )
    assert TokenRecyclingDrafter(adjacency).propose(context, 10).tree == whole.head(10)
    chain = TokenRecyclingDrafter(adjacency, branches=False).propose(context, 200).tree
    assert chain.chain_length == len(chain) == 6
    assert ranks(whole)[: whole.ids.index(chain.ids[0]) + 1] == [(0,)]


def test_sam_copies_long_matches_and_recycles_elsewhere() -> None:
    recycling = TokenRecyclingDrafter(full_matrix())
    phrase = ids(1, 2, 3, 4, 5)
    context = Context([*phrase, *ids(11, 12), *phrase, *ids(13, 14), *phrase[:4]])
    sam = SamDrafter(recycling)
    assert sam.propose(context, 90) == recycling.propose(context, 90)  # the match has 4 ids
    context.extend(phrase[4:])
    copied = sam.propose(context, 90).tree
    assert copied.chain_length == len(copied)
    assert copied.ids == tuple(context.ids[5:])  # what followed first, to the end of the text
    assert set(copied.sources) == {"sam"}
    assert len(sam.propose(context, 3).tree) == 3
    context.extend(ids(*range(100, 160), *phrase))
    assert sam.propose(context, 90).tree.ids == tuple(context.ids[5 : 5 + SAM_COPIED])
