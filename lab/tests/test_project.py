"""A projection is the time of the recorded rounds under a curve, added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.project import project
from lab.recorded_proposals import WRONG, ProposalTrace, RecordedProposal, TracedText
from lab.round_costs import RoundCosts, in_plain_passes, plain_time
from tokalign.runtime.cost import CostCurve, Timing
from tokalign.tables.token_tree import TokenTree

COSTS = RoundCosts(rows=(1.0, 1.25, 1.5, 1.75), draft_pass=0.125, host=0.0625)


def trace_of(length: int, accepted: int, *, passes: int = 0, tokens: int = 12) -> ProposalTrace:
    """One text; at each position a chain of `length` ids, as far as there is room."""
    text = TracedText(given=1, length=1 + tokens)
    for at in range(1, tokens):
        room = min(length, tokens - at)
        chain = TokenTree.chain([WRONG] * room, "it")
        proposal = RecordedProposal.of(chain, range(min(accepted, room)), passes=passes)
        text.proposals.setdefault("it", {})[at] = proposal
    return ProposalTrace(texts=(text,))


def test_a_fixed_length_takes_the_time_of_its_rounds() -> None:
    """Two ids of three are right, so a round emits 3 tokens; the last has room for 2."""
    found = project(trace_of(3, 2), COSTS)
    assert found.fixed[0] == 1.0
    assert found.fixed[3] == pytest.approx(12 / (3 * (1.75 + 0.0625) + 1.5 + 0.0625))
    assert found.fixed[2] == pytest.approx(12 / (4 * (1.5 + 0.0625)))
    assert found.best == max(found.fixed, key=lambda length: found.fixed[length])


def test_passes_of_a_draft_model_take_time() -> None:
    found = project(trace_of(3, 2, passes=3), COSTS)
    rounds = 3 * (1.75 + 0.0625) + 1.5 + 0.0625
    assert found.fixed[3] == pytest.approx(12 / (rounds + 4 * 3 * 0.125))
    assert found.fixed[1] == pytest.approx(12 / (6 * (1.25 + 0.0625 + 0.125)))


def test_a_draft_that_grew_a_tree_takes_the_passes_of_trees() -> None:
    """One of two ids is right, so each round emits two tokens; the last has room for one id."""
    text = TracedText(given=1, length=5)
    for at in (1, 3):
        pair = TokenTree((WRONG, WRONG), (-1, -1), ("it",) * 2, (0.5, 0.25))
        text.proposals.setdefault("it", {})[at] = RecordedProposal.of(pair, [0], passes=2)
    trace = ProposalTrace(texts=(text,))
    costs = replace(COSTS, tree_pass=0.25)
    rounds = 1.5 + 1.25 + 2 * (0.0625 + 0.125 + 0.25)
    assert project(trace, costs, lengths=[2]).fixed[2] == 4 / rounds


@given(st.integers(1, 6), st.integers(0, 4))
def test_only_lengths_that_the_trace_holds_are_projected(length: int, passes: int) -> None:
    """Passes are the length of a draft model's proposals, however many ids they bring."""
    trace = trace_of(length, 1, passes=passes)
    assert trace.longest == (passes or length)
    assert sorted(project(trace, COSTS).fixed) == list(range(trace.longest + 1))
    assert sorted(project(trace, COSTS, lengths=(2, 9)).fixed) == (
        [0, 2] if trace.longest >= 2 else [0]
    )


def test_a_text_without_proposals_is_decoded_plainly() -> None:
    trace = ProposalTrace(texts=(TracedText(given=1, length=9),))
    found = project(trace, COSTS)
    assert found.fixed == {0: 1.0}


def test_the_host_is_apart_from_the_rows_that_every_other_round_waits_for() -> None:
    def timing(seconds: float) -> Timing:
        return Timing(seconds, seconds, seconds)

    rows = {1: timing(0.01), 4: timing(0.04)}
    curve = CostCurve(name="it", source="by hand", rows=rows, draft_pass=timing(0.001), host=0.002)
    costs = in_plain_passes(curve)
    assert costs.rows == pytest.approx((1.0, 2.25, 3.5, 4.75))
    assert costs.verify(3) + costs.host == pytest.approx(0.03 / 0.008), "C(3) itself"
    assert costs.draft_pass == pytest.approx(0.001 / 0.008)
    assert in_plain_passes(curve.without_draft()).draft_pass == 0
    assert plain_time(replace(curve, host=0.05)) == pytest.approx(0.005), "half of C(1) at least"
    alone = CostCurve(name="slow", source="measured", rows={1: timing(2.0)})
    assert in_plain_passes(alone).rows == (1.0,)
