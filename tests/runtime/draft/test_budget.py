"""Drafting rests once it has lost too much; trials of drafts that do not pay grow rare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.draft.knowledge import (
    CREDIT,
    REST,
    SHARE,
    SLACK,
    SLACK_SHARE,
    DraftBudget,
    Knowledge,
    Trials,
)
from tokalign.runtime.draft.learned_costs import LearnedCosts, PassTimes, Plan


def test_a_dear_round_counts_in_full_and_a_hiccup_does_not() -> None:
    dear, hiccup = DraftBudget(), DraftBudget()
    dear.account(10.0, 1, expected=10.0, plain=1.0)
    hiccup.account(100.0, 1, expected=1.0, plain=1.0)
    assert dear.forbids(1.0)
    assert not hiccup.forbids(1.0)


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.integers(1, 9)), max_size=60))
def test_drafting_rests_once_the_loss_exceeds_the_slack(rounds: list[tuple[float, int]]) -> None:
    """The loss of a stretch is what its rounds took, less plain decoding and the share of it."""
    budget, losses = DraftBudget(), list[float]()
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
    budget, spent, lost = DraftBudget(), list[bool](), 0.0
    for _ in range(20):
        budget.begin(32)
        for _ in range(32):
            drafts = not budget.forbids(1.0)
            lost += 0.5 * drafts
            budget.account(1.0 + 0.5 * drafts, 1, expected=1.5, plain=1.0)
        spent.append(budget.forbids(1.0))
        assert lost <= min(SLACK, 32 * len(spent) * SLACK_SHARE) + 32 * len(spent) * SHARE + 0.5
    assert spent[0]
    assert lost > SLACK


def test_a_rest_forbids_little_that_promises_much() -> None:
    """Tries that lose grow rare; after one that gains, the next may follow at once."""
    budget, tried = DraftBudget(), []
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
    budget.begin(100)  # another text
    while budget.forbids(2.0):
        budget.account(1.0, 1, expected=1.0, plain=1.0, drafted=False)
    budget.account(1.0, 5, expected=1.0, plain=1.0)
    assert not budget.forbids(2.0)


def test_waiting_for_a_draft_does_not_end_drafting_before_it_has_begun() -> None:
    """A round that waits does not run ahead, which costs more than a plain round pays back."""
    budget = DraftBudget()
    budget.begin(16)
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
    def knowledge(second_row: float) -> Knowledge:
        rows, drafts = PassTimes([1.0, second_row], weight=4), PassTimes([0.3], weight=4)
        return Knowledge(costs=LearnedCosts(rows, drafts))

    cheap, dear, does_not_pay = knowledge(1.2), knowledge(2.0), Plan(1, 0.9)
    assert cheap.trial_is_due(does_not_pay)
    assert not cheap.trial_is_due(Plan(1, 1.1))  # it pays: that is no trial
    waited = 0
    while not dear.trial_is_due(does_not_pay):
        dear.model_trials.count()
        waited += 1
    assert waited == 1024  # the costs may have been mistaken


def test_long_drafts_grow_rare() -> None:
    long_drafts, found = Trials(8), list[int]()
    for number in range(1, 4000):
        if long_drafts.is_due:
            found.append(number)
        long_drafts.count_or_try()
    assert found == [9, 25, 57, 121, 249, 505, 1017, 2041, 3065]
