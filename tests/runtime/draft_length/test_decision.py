"""The rules of one round, each in the situation that it is for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.cost.expected_gain import Plan
from tokalign.runtime.draft_length.decision import Decision, Situation, decide

NOTHING = Plan(0, 1.0)
PLAIN = Situation(limit=8, plain=1.0, offer=NOTHING)

plans = st.builds(Plan, st.integers(1, 16), st.floats(0.1, 5.0))
situations = st.builds(
    Situation,
    limit=st.integers(1, 16),
    plain=st.floats(0.5, 2.0),
    pass_under_way=st.booleans(),
    budget_is_spent=st.booleans(),
    plain_rounds_due=st.integers(0, 3),
    offer=st.just(NOTHING) | plans,
    offers_pay=st.booleans(),
    model=st.none() | plans,
    trial_is_due=st.booleans(),
    long_draft_is_due=st.booleans(),
)


@given(situations)
def test_a_round_does_one_thing_within_its_limit(now: Situation) -> None:
    found = decide(now)
    assert not (found.passes and found.offered)
    assert not (found.run_ahead and (found.passes or found.offered))
    assert 0 <= found.passes <= now.limit
    assert 0 <= found.offered <= now.limit
    assert found.passes or not found.is_trial


@given(situations)
def test_where_drafting_is_impossible_or_pauses_nothing_is_proposed(now: Situation) -> None:
    found = decide(now)
    if now.pass_under_way or now.budget_is_spent or now.plain_rounds_due:
        assert (found.passes, found.offered) == (0, 0)


@given(situations)
def test_what_is_proposed_is_expected_to_beat_the_rest(now: Situation) -> None:
    """Unless it is a trial, which is made of whatever is expected."""
    found = decide(now)
    if found.passes and not found.is_trial:
        assert now.model is not None
        assert now.model.rate > max(now.offer.rate, 1 / now.plain)
    if found.offered:
        assert now.offer.length > 0
        assert now.model is None or now.model.rate <= max(now.offer.rate, 1 / now.plain)
    if now.trial_is_due and now.model is not None and not found.passes:
        assert now.pass_under_way or now.budget_is_spent or now.plain_rounds_due


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Decision(run_ahead=True)),
        ({"offer": Plan(3, 1.2)}, Decision(offered=3)),
        ({"model": Plan(2, 1.3)}, Decision(passes=2)),
        ({"model": Plan(2, 1.3), "offer": Plan(3, 1.2)}, Decision(passes=2)),
        ({"model": Plan(2, 1.3), "offer": Plan(3, 1.4)}, Decision(offered=3)),
        ({"model": Plan(2, 0.9)}, Decision(run_ahead=True)),
        ({"model": Plan(2, 0.9), "trial_is_due": True}, Decision(passes=2, is_trial=True)),
        (
            {"model": Plan(2, 0.9), "trial_is_due": True, "offer": Plan(3, 1.4)},
            Decision(passes=2, is_trial=True),
        ),
        ({"offer": Plan(3, 1.2), "long_draft_is_due": True}, Decision(offered=7)),
        ({"model": Plan(5, 1.2), "long_draft_is_due": True}, Decision(passes=8)),
    ],
)
def test_each_rule(changes: dict[str, Any], expected: Decision) -> None:
    assert decide(PLAIN._replace(**changes)) == expected


@pytest.mark.parametrize("hope", ["offers_pay", "trial_is_due"])
def test_a_plain_round_runs_ahead_unless_the_next_may_draft(hope: str) -> None:
    expecting = PLAIN._replace(**{hope: True})
    assert decide(PLAIN).run_ahead
    assert not decide(expecting).run_ahead
    assert not decide(expecting._replace(plain_rounds_due=1)).run_ahead
    assert decide(expecting._replace(plain_rounds_due=2)).run_ahead
    assert decide(expecting._replace(budget_is_spent=True)).run_ahead
