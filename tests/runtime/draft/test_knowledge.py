"""What is learned of costs and offers; drafting rests after losses, and trials of it grow rare."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokalign.runtime.draft.allowance import (
    CREDIT,
    REST,
    SHARE,
    SLACK,
    SLACK_SHARE,
    Allowance,
    DraftBudget,
)
from tokalign.runtime.draft.knowledge import (
    Knowledge,
    ModelWorth,
    OfferWorth,
    Parking,
    Trials,
)
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


def test_what_a_pass_brings_and_costs_is_learned() -> None:
    """Tokens that free sources add, several rows for each pass, or no row at all."""
    costs = costs_of(1.0, 1.5, 2.0, 2.5, draft_pass=0.1)

    def learned(start: float, **draft: int) -> tuple[Plan, Plan]:
        """The best plan before and after many such drafts."""
        model = ModelWorth(Acceptance(start=start))
        before = model.best(costs, 1)
        for _ in range(400):
            model.learn(1, **draft)
        return before, model.best(costs, 1)

    before, joined = learned(0.4, right=0, known=0, rows=1, added=1)
    assert joined.tokens == pytest.approx(before.tokens + 1, rel=0.01)
    before, wide = learned(0.9, right=1, known=1, rows=3)
    assert wide.rate < 0.75 * before.rate
    _, empty = learned(0.5, right=0, known=1, rows=0)
    assert empty.rate > 0.85


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
    knowledge = Knowledge(costs=costs_of(1.0, 1.24))
    course = knowledge.begin(100)
    for _ in range(10):
        course.allowance.account(1.0, 1, expected=1.0, plain=1.0)
    assert knowledge.why_plain() is None
    for _ in range(6):
        knowledge.costs.observe_plain(1.0)
    told = knowledge.why_plain()
    assert told is not None
    assert "6 of 10 rounds were plain" in told
    assert "1.24 plain passes" in told


def test_a_dear_round_counts_in_full_and_a_hiccup_does_not() -> None:
    dear, hiccup = Allowance(DraftBudget()), Allowance(DraftBudget())
    dear.account(10.0, 1, expected=10.0, plain=1.0)
    hiccup.account(100.0, 1, expected=1.0, plain=1.0)
    assert dear.forbids(1.0)
    assert not hiccup.forbids(1.0)


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.integers(1, 9)), max_size=60))
@example([(0.1, 9)] * 10 + [(9.0, 1)] * 10)
def test_drafting_rests_once_the_loss_exceeds_the_slack(rounds: list[tuple[float, int]]) -> None:
    """The loss of a stretch is what its rounds took, less plain decoding and the share of it."""
    budget, losses = Allowance(DraftBudget()), list[float]()
    for seconds, tokens in rounds:
        budget.account(seconds, tokens, expected=seconds, plain=1.0)
        losses.append(seconds - tokens * (1 + SHARE))
    # What was gained before the credit was full is forgotten: the worst stretch decides.
    worst = max((sum(losses[start:]) for start in range(len(losses))), default=0.0)
    lost = max(sum(losses), worst - CREDIT) if losses else 0.0
    if lost > SLACK + 1e-6:
        assert budget.forbids(1.0)
    if lost < SLACK - REST - 1e-6:
        assert not budget.forbids(1.0)


def test_requests_together_may_lose_what_one_of_their_length_may() -> None:
    """The second one does not suffer for the first, but at last all of them have lost enough."""
    knowledge, spent, lost = Knowledge(costs=costs_of(1.0)), list[bool](), 0.0
    for _ in range(20):
        allowance = knowledge.begin(32).allowance
        for _ in range(32):
            drafts = not allowance.forbids(1.0)
            lost += 0.5 * drafts
            allowance.account(1.0 + 0.5 * drafts, 1, expected=1.5, plain=1.0)
        spent.append(allowance.forbids(1.0))
        assert lost <= min(SLACK, 32 * len(spent) * SLACK_SHARE) + 32 * len(spent) * SHARE + 0.5
    assert spent[0]
    assert lost > SLACK


def test_requests_that_take_turns_have_allowances_of_their_own() -> None:
    """A short one that begins, and rests at once, leaves the long one as it was."""
    knowledge = Knowledge(costs=costs_of(1.0))
    long = knowledge.begin(10_000)
    long.allowance.account(3.0, 1, expected=3.0, plain=1.0)
    short = knowledge.begin(16)
    assert not short.allowance.forbids(1.0), "it does not suffer for the other"
    short.allowance.account(2.0, 1, expected=2.0, plain=1.0)
    assert short.allowance.forbids(1.0)
    assert not long.allowance.forbids(1.0)
    for _ in range(100):
        short.offers.learn(Plan(0, 1.0), plain=1.0, overlap=0.5)
        short.parking.count(accepted=0)
    assert not short.offers.pays
    assert long.offers.pays
    assert short.parking.is_parked
    assert not long.parking.is_parked


def test_a_rest_forbids_little_that_promises_much() -> None:
    """Tries that lose grow rare; after one that gains, the next may follow at once."""
    shared, tried = DraftBudget(), []
    budget = Allowance(shared)
    budget.account(1000.0, 1, expected=1000.0, plain=1.0)
    for at in range(400):
        assert budget.forbids(1.1)
        drafts = not budget.forbids(2.0)
        tried += [at] * drafts
        lost = 2.0 if drafts else 1.0
        budget.account(lost, 1, expected=lost, plain=1.0, drafted=drafts)
    assert tried == [2, 7, 16, 33, 66, 131, 260]
    assert budget.forbids(2.0)
    assert not budget.forbids(5.0)  # what promises more waits less
    budget = Allowance(shared, 100, budget)  # another text
    while budget.forbids(2.0):
        budget.account(1.0, 1, expected=1.0, plain=1.0, drafted=False)
    budget.account(1.0, 5, expected=1.0, plain=1.0)
    assert not budget.forbids(2.0)


def test_waiting_for_a_draft_does_not_end_drafting_before_it_has_begun() -> None:
    """A round that waits does not run ahead, which costs more than a plain round pays back."""
    budget = Allowance(DraftBudget(), 16)
    budget.account(2.0, 1, expected=2.0, plain=1.0)
    while budget.forbids(1.0):
        budget.account(1.0, 1, expected=1.0, plain=1.0)
    budget.account(1.1, 1, expected=1.1, plain=1.0)
    assert not budget.forbids(1.0)


@pytest.mark.parametrize(
    ("paid", "expected"),
    [
        ([False] * 9, [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]),
        # A trial that paid is repeated at once; if the next one does not pay, waits go on from
        # where they were.
        ([False, False, True, False], [16, 32, 0, 128]),
    ],
)
def test_trials_of_a_model_that_does_not_pay_back_off(
    paid: list[bool], expected: list[int]
) -> None:
    trials, waits = Trials(16, at_once=True), list[int]()
    for one in paid:
        trials.tried()
        if one:
            trials.paid()
        waits.append(0)
        while not trials.is_due:
            trials.count()
            waits[-1] += 1
    assert waits == expected
    trials.tried(pays=True)
    assert trials.is_due


def test_a_model_is_tried_only_where_it_could_pay() -> None:
    cheap, dear = (Knowledge(costs=costs_of(1.0, row, draft_pass=0.3)) for row in (1.2, 2.0))
    does_not_pay = Plan(1, 0.9)
    assert cheap.trial_is_due(does_not_pay)
    assert not cheap.trial_is_due(Plan(1, 1.1))  # it pays: that is no trial
    waited = 0
    while not dear.trial_is_due(does_not_pay):
        dear.model_trials.count()
        waited += 1
    assert waited == 1024  # the costs may have been mistaken


def test_parking_has_probes() -> None:
    parking, parked = Parking(), list[bool]()
    for _ in range(64 + 2 * 256):
        parked.append(parking.is_parked)
        parking.count(accepted=0)
    assert not any(parked[:64])
    assert parked[64:] == [*[True] * 240, *[False] * 16] * 2
    parking.count(accepted=1)
    assert not parking.is_parked
