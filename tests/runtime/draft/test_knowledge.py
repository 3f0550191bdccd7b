"""What is learned of costs, offers and sources, one estimate after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.draft.knowledge import DraftBudget, Knowledge, ModelWorth, OfferWorth
from tokalign.runtime.draft.learned_costs import LearnedCosts, PassTimes, Plan
from tokalign.runtime.draft.neural import Acceptance


def costs_of(*rows: float, host: float = 0.0, draft_pass: float | None = None) -> LearnedCosts:
    drafts = None
    if draft_pass is not None:
        drafts = PassTimes([draft_pass * n for n in range(1, 17)], weight=4)
    return LearnedCosts(PassTimes(rows, weight=4), drafts, host=host)


def test_running_ahead_hides_host_time_at_most_half_a_round() -> None:
    assert costs_of(1.0, host=0.2).plain == pytest.approx(0.8)
    assert costs_of(1.0, host=0.2).overlap == pytest.approx(0.25)
    assert costs_of(1.0, host=0.9).plain == pytest.approx(0.5)


def test_plain_decoding_is_believed_once_it_is_timed() -> None:
    """Of an assumed curve at once; and one row without running ahead takes the host time too."""
    assumed = LearnedCosts(PassTimes([1.0, 1.2], weight=0), host=0.002)
    assumed.observe_plain(0.010)
    assert assumed.plain == pytest.approx(0.010)
    assert assumed.rows(1) == pytest.approx(0.012)
    assert assumed.rows(2) == pytest.approx(1.2 * 0.012)
    measured = costs_of(0.020)
    measured.observe_plain(0.015)
    assert 0.015 < measured.plain < 0.020


def test_drafts_count_in_plain_passes_until_they_are_timed() -> None:
    drafts = PassTimes([0.1, 0.2], weight=0)
    costs = LearnedCosts(PassTimes([0.020], weight=4), drafts)
    assert costs.draft_times(2)[1] == pytest.approx(0.2 * 0.020)
    drafts.observe(1, 0.003)
    assert costs.draft_times(2)[1] == pytest.approx(0.006)


@given(
    st.floats(0.05, 0.99),
    st.floats(0.0, 0.4),
    st.lists(st.floats(1.0, 3.0), min_size=1, max_size=8).map(sorted),
)
def test_no_other_number_of_passes_has_a_higher_rate(
    right: float, draft_pass: float, rows: list[float]
) -> None:
    costs = costs_of(1.0, *rows, draft_pass=draft_pass + 1e-9)
    model = ModelWorth(Acceptance(start=right))
    rates = [
        sum(right**i for i in range(n + 1)) / (costs.rows(n + 1) + costs.draft_times(n)[-1])
        for n in range(1, 9)
    ]
    found = model.best(costs, 8)
    assert found.rate == pytest.approx(max(rates))
    assert rates[found.length - 1] == pytest.approx(found.rate)


def test_a_model_with_dear_passes_is_hopeless() -> None:
    assert ModelWorth().is_hopeless(costs_of(1.0, 1.0, draft_pass=1.0))
    assert not ModelWorth().is_hopeless(costs_of(1.0, 1.0, draft_pass=0.1))


def test_tokens_that_free_sources_add_count_for_a_draft_that_they_join() -> None:
    costs, model = costs_of(1.0, 1.1, draft_pass=0.1), ModelWorth(Acceptance(start=0.4))
    before = model.best(costs, 1)
    for _ in range(400):
        model.learn(1, 0, known=0, rows=1, added=1)
    assert model.best(costs, 1).tokens == pytest.approx(before.tokens + 1, rel=0.01)


def test_passes_that_bring_several_ids_cost_several_rows() -> None:
    costs, model = costs_of(1.0, 1.5, 2.0, 2.5, draft_pass=0.1), ModelWorth(Acceptance(start=0.9))
    before = model.best(costs, 1).rate
    for _ in range(400):
        model.learn(1, 1, known=1, rows=3)
    assert model.best(costs, 1).rate < 0.75 * before


def test_drafts_of_which_nothing_is_worth_a_row_cost_no_row() -> None:
    costs, model = costs_of(1.0, 1.5, draft_pass=0.1), ModelWorth()
    for _ in range(400):
        model.learn(1, 0, known=1, rows=0)
    assert model.best(costs, 1).rate > 0.85


def test_waiting_for_offers_pays_while_they_save_more_than_the_overlap() -> None:
    offers = OfferWorth()
    for _ in range(100):
        offers.learn(Plan(0, 1.0), plain=1.0, overlap=0.1)
    assert not offers.pays
    for _ in range(100):
        offers.learn(Plan(2, 1.5, tokens=2.0), plain=1.0, overlap=0.1)
    assert offers.pays


def test_sources_that_are_slow_are_asked_less() -> None:
    slow, quick = OfferWorth(), OfferWorth()
    for _ in range(100):
        rare = slow.rounds_between(0.010, plain=0.020)
        often = quick.rounds_between(0.0001, plain=0.020)
    assert rare == pytest.approx(50, abs=1)  # 1 % of the time
    assert often <= 1


def test_a_user_is_told_if_most_rounds_were_plain() -> None:
    knowledge = Knowledge(costs=costs_of(1.0, 1.24), budget=DraftBudget())
    for _ in range(10):
        knowledge.budget.account(1.0, 1, expected=1.0, plain=1.0)
    assert knowledge.why_plain() is None
    for _ in range(6):
        knowledge.costs.observe_plain(1.0)
    told = knowledge.why_plain()
    assert told is not None
    assert "6 of 10 rounds were plain" in told
    assert "1.24 plain passes" in told
