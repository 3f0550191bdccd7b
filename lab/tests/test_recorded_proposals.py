"""A trace answers for draft lengths that nobody was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.recorded_proposals import WRONG, RecordedProposal
from tokalign.tables.token_tree import TokenTree


def chain(count: int, accepted: int, *, passes: int = 0) -> RecordedProposal:
    tree = TokenTree.chain([WRONG] * count, "d")
    return RecordedProposal.of(tree, range(accepted), passes=passes)


@st.composite
def proposals(draw: st.DrawFn) -> RecordedProposal:
    """A tree and some path from a root of it."""
    count = draw(st.integers(0, 6))
    chance = st.floats(0, 1).map(lambda p: round(p, 4))
    tree = TokenTree(
        (WRONG,) * count,
        tuple(draw(st.integers(-1, i - 1)) for i in range(count)),
        tuple(draw(st.sampled_from(["draft", "copy"])) for _ in range(count)),
        tuple(draw(chance) for _ in range(count)) if draw(st.booleans()) else (),
    )
    return RecordedProposal.of(
        tree,
        tree.path_to(draw(st.integers(-1, count - 1))),
        passes=draw(st.integers(0, 8)),
    )


def test_fewer_passes_bring_fewer_ids() -> None:
    whole = chain(9, 5, passes=8)
    assert whole.at_most(8) is whole
    assert whole.at_most(4) == chain(4, 4, passes=4)
    assert whole.at_most(1).accepted == 1


def test_a_free_proposal_is_cut() -> None:
    whole = chain(5, 3)
    assert whole.at_most(5) is whole
    assert whole.at_most(4) == chain(4, 3)
    assert whole.at_most(2) == chain(2, 2)


def test_alternatives_to_the_chain_stay_with_their_parent() -> None:
    """A chain of three, and another id that might come first."""
    tree = TokenTree((WRONG,) * 4, (-1, 0, 1, -1), ("d",) * 4)
    short = RecordedProposal.of(tree, (3,), passes=3).at_most(1)
    assert short.tree.parents == (-1, -1)
    assert short.passes == 1
    later = RecordedProposal.of(TokenTree((WRONG,) * 4, (-1, 0, 1, 1), ("d",) * 4), (), passes=3)
    assert later.at_most(1).tree.parents == (-1,)
    assert later.at_most(2).tree.parents == (-1, 0, 1)
    assert short.path == [1]


@given(proposals())
def test_what_was_accepted_stays_so_at_a_shorter_length(whole: RecordedProposal) -> None:
    accepted = [whole.at_most(length).accepted for length in range(1, whole.length + 1)]
    assert accepted == sorted(accepted)
    assert not accepted or accepted[-1] == whole.accepted


def test_no_path_through_the_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="no path"):
        RecordedProposal.of(TokenTree.chain([WRONG] * 3, "d"), (0, 2))
