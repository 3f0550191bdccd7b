"""Beams as trees: shared prefixes are one row, and nothing that was found is lost."""

from __future__ import annotations

from math import exp

from trees import paths

from tokalign.runtime.mlx.beam_search import Beams


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
    assert [*paths(tree)] == [(7,), (7, 8), (7, 8, 9), (7, 2), (7, 8, 4), (7, 2, 3)]
    assert tree.probabilities[0] == exp(-0.1)
    assert set(tree.sources) == {"drafter"}


def test_what_is_impossible_is_left_out() -> None:
    """A filter may leave one id, so that the other beams have no probability."""
    no = float("-inf")
    found = Beams(
        ids=[[[7, 1]] * 2, [[8, 2], [5, 6]]],  # type: ignore[arg-type]
        logprobs=[[[0.0, no], [no, no]], [[-0.5, -1.0], [-0.1, -2.0]]],
        chosen=[[0, 1], [0, 1]],
    )
    for tree in (found.tree("drafter"), found.beam_tree("drafter")):
        assert [*paths(tree)] == [(7,), (7, 8), (7, 2)]
