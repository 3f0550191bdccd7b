"""Beams as trees: shared prefixes are one row, and nothing that was found is lost."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from tokalign.runtime.draft.beams import Beams
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def searched(width: int, length: int, count: int, seed: int) -> tuple[Beams, list[list[int]]]:
    """A search with random probabilities, and its last beams as lists of ids."""
    random = np.random.default_rng(seed)
    ids, logprobs, chosen = [], [], []
    reached, beams = np.zeros(1), [[]]  # type: ignore[var-annotated]
    for _ in range(length):
        listed = [random.permutation(50)[:count].tolist() for _ in range(width)]
        values = np.log(random.dirichlet(np.full(count, 0.5), size=width))
        if len(beams) == 1:
            values[1:] = -np.inf
        paths = (reached[:, None] + values[: len(beams)]).ravel()
        best = np.argsort(-paths, kind="stable")[:width]
        beams = [[*beams[i // count], listed[i // count][i % count]] for i in best.tolist()]
        reached = paths[best]
        ids.append(listed)
        logprobs.append(values.tolist())
        chosen.append(best.tolist())
    return Beams(ids, logprobs, chosen), beams


def texts(tree: TokenTree[TargetId]) -> list[tuple[TargetId, ...]]:
    return [tuple(tree.ids[i] for i in tree.path_to(index)) for index in range(len(tree))]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_has_a_row_for_every_prefix(width: int, seed: int) -> None:
    found, beams = searched(width, 4, 16, seed)
    tree = found.beam_tree("drafter")
    prefixes = {tuple(beam[: n + 1]) for beam in beams for n in range(4)}
    assert set(texts(tree)) == prefixes
    assert len(tree) == len(prefixes)
    assert list(tree.first_chain.ids) == beams[0]


def test_the_example_of_the_docstring() -> None:
    """The beams 7 8 9, 7 8 4 and 7 2 3."""
    no = [float("-inf")] * 3
    found = Beams(
        ids=[[[7, 1, 5]] * 3, [[8, 2, 6]] * 3, [[9, 4, 0], [3, 1, 0], [0, 1, 2]]],  # type: ignore[arg-type]
        logprobs=[
            [[-0.1, -5.0, -9.0], no, no],
            [[-0.2, -0.9, -9.0], [-9.0] * 3, [-9.0] * 3],
            [[-0.3, -0.4, -9.0], [-0.1, -9.0, -9.0], [-9.0] * 3],
        ],
        chosen=[[0, 1, 2], [0, 1, 2], [0, 1, 3]],
    )
    tree = found.beam_tree("drafter")
    assert texts(tree) == [(7,), (7, 8), (7, 8, 9), (7, 2), (7, 8, 4), (7, 2, 3)]
    assert tree.probabilities[0] == exp(-0.1)
    assert set(tree.sources) == {"drafter"}


@pytest.mark.parametrize("seed", range(5))
def test_all_that_was_listed_is_in_the_whole_tree(seed: int) -> None:
    found, beams = searched(3, 4, 6, seed)
    tree = found.tree("drafter")
    assert len(tree) == 6 + 3 * 3 * 6
    assert {tuple(beam) for beam in beams} <= set(texts(tree))
    assert len(set(texts(tree))) == len(tree)
    assert all(parent < index for index, parent in enumerate(tree.parents))
    assert list(tree.first_chain.ids) == beams[0]


def test_what_is_impossible_is_left_out() -> None:
    """A filter may leave one id, so that the other beams have no probability."""
    no = float("-inf")
    found = Beams(
        ids=[[[7, 1]] * 2, [[8, 2], [5, 6]]],  # type: ignore[arg-type]
        logprobs=[[[0.0, no], [no, no]], [[-0.5, -1.0], [-0.1, -2.0]]],
        chosen=[[0, 1], [0, 1]],
    )
    assert texts(found.tree("drafter")) == [(7,), (7, 8), (7, 2)]
    assert texts(found.beam_tree("drafter")) == [(7,), (7, 8), (7, 2)]
