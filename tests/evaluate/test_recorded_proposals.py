"""A trace answers for draft lengths that nobody was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.evaluate.recorded_proposals import (
    WRONG,
    ProposalTrace,
    RecordedProposal,
    TracedText,
    speedup_at,
)
from tokalign.runtime.draft_length.learned_costs import Costs
from tokalign.tables.token_tree import TokenTree

COSTS = Costs(rows=(1.0, 1.25, 1.5, 1.75), draft_pass=0.125, host=0.0625)


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


def trace_of(accepted: int, *, passes: int = 0) -> ProposalTrace:
    """A text of 12 ids; at each position a chain of three, as far as there is room."""
    text = TracedText(given=1, length=13)
    for at in range(1, 12):
        room = min(3, 12 - at)
        found = chain(room, min(accepted, room), passes=passes)
        text.proposals.setdefault("it", {})[at] = found
    return ProposalTrace(texts=(text,))


def test_a_fixed_length_takes_the_time_of_its_rounds() -> None:
    """Two ids of three are right, so a round emits 3 tokens; the last has room for 2."""
    trace = trace_of(2)
    assert speedup_at(trace, COSTS, 3) == pytest.approx(12 / (3 * (1.75 + 0.0625) + 1.5 + 0.0625))
    assert speedup_at(trace, COSTS, 2) == pytest.approx(12 / (4 * (1.5 + 0.0625)))


def test_passes_of_a_draft_model_take_time() -> None:
    trace = trace_of(2, passes=3)
    rounds = 3 * (1.75 + 0.0625) + 1.5 + 0.0625
    assert speedup_at(trace, COSTS, 3) == pytest.approx(12 / (rounds + 4 * 3 * 0.125))
    assert speedup_at(trace, COSTS, 1) == pytest.approx(12 / (6 * (1.25 + 0.0625 + 0.125)))


def test_a_draft_that_grew_a_tree_takes_the_passes_of_trees() -> None:
    """One of two ids is right, so each round emits two tokens; the last has room for one id."""
    text = TracedText(given=1, length=5)
    for at in (1, 3):
        pair = TokenTree((WRONG, WRONG), (-1, -1), ("it",) * 2, (0.5, 0.25))
        text.proposals.setdefault("it", {})[at] = RecordedProposal.of(pair, [0], passes=2)
    costs = replace(COSTS, tree_pass=0.25)
    found = speedup_at(ProposalTrace(texts=(text,)), costs, 2)
    assert found == pytest.approx(4 / (2 * (1.5 + 0.0625 + 2 * 0.25)))
