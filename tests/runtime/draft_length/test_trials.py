"""Trials of a draft model that does not pay grow rare, and so do drafts made long on purpose."""

from __future__ import annotations

from tokalign.cost.expected_gain import Plan
from tokalign.runtime.draft_length.estimates import PassTimes
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.learned_costs import LearnedCosts
from tokalign.runtime.draft_length.trials import LongDrafts, ModelTrials


def test_trials_of_a_model_that_does_not_pay_back_off() -> None:
    trials, waits = ModelTrials(), list[int]()
    for _ in range(9):
        trials.tried(pays=False)
        waits.append(0)
        while not trials.is_due:
            trials.count_round()
            waits[-1] += 1
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
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
        dear.model_trials.count_round()
        waited += 1
    assert waited == 1024  # the costs may have been mistaken


def test_long_drafts_grow_rare() -> None:
    long_drafts, found = LongDrafts(), list[int]()
    for number in range(1, 4000):
        if long_drafts.is_due:
            found.append(number)
        long_drafts.count_draft()
    assert found == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072]
