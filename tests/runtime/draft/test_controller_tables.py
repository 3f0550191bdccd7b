"""What the controller learns: what drafts bring, what drafting has lost, when trials are due."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes, Plan
from tokalign.runtime.draft.knowledge import Knowledge, ModelWorth, Trials
from tokalign.runtime.draft.losses import _REST, CREDIT, MOST_LOST, SHARE, Balance, Losses
from tokalign.runtime.draft.neural import Acceptance
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.rounds import Context, Round
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.vocabulary import TargetId


def costs_of(*rows: float) -> LearnedCosts:
    return LearnedCosts(PassTimes(rows, weight=4))


def drafts_of(draft_pass: float, most: int = 8) -> list[float]:
    return [draft_pass * n for n in range(1, 1 + most)]


@given(
    st.floats(0.05, 0.95),
    st.floats(0.0, 0.4),
    st.lists(st.floats(1.0, 3.0), min_size=1, max_size=8).map(sorted),
)
def test_no_other_number_of_passes_has_a_higher_rate(
    right: float, draft_pass: float, rows: list[float]
) -> None:
    costs, drafts = costs_of(1.0, *rows), drafts_of(draft_pass + 1e-9)
    model = ModelWorth(Acceptance(start=right))
    rates = [
        sum(right**i for i in range(n + 1)) / (costs.rows(n + 1) + drafts[n - 1])
        for n in range(1, 9)
    ]
    found = model.best(costs, drafts)
    assert found.rate == pytest.approx(max(rates))
    assert rates[found.length - 1] == pytest.approx(found.rate)


def test_what_a_pass_brings_and_costs_is_learned() -> None:
    """Tokens that free sources add, several rows for each pass, or no row at all."""
    costs, drafts = costs_of(1.0, 1.5, 2.0, 2.5), drafts_of(0.1, 1)

    def learned(start: float, **draft: int) -> tuple[Plan, Plan]:
        """The best plan before and after many such drafts."""
        model = ModelWorth(Acceptance(start=start))
        before = model.best(costs, drafts)
        for _ in range(400):
            model.learn(1, **draft)
        return before, model.best(costs, drafts)

    before, joined = learned(0.4, right=0, known=2, rows=1)
    assert before.tokens == pytest.approx(1.4)
    assert joined.tokens == pytest.approx(2.0, rel=0.01)
    before, wide = learned(0.9, right=1, known=1, rows=3)
    assert wide.rate < 0.75 * before.rate
    _, empty = learned(0.5, right=0, known=1, rows=0)
    assert empty.rate > 0.85


def test_a_user_is_told_if_most_rounds_were_plain() -> None:
    knowledge = Knowledge(costs=costs_of(1.0, 1.24))
    knowledge.rounds, knowledge.plain_rounds = 10, 5
    assert knowledge.why_plain() is None
    knowledge.plain_rounds = 6
    told = knowledge.why_plain()
    assert told is not None
    assert "6 of 10 rounds were plain" in told
    assert "1.24 plain passes" in told


def test_rows_are_priced_by_the_cheapest_count_that_holds_them() -> None:
    """Four rows take no longer than one, and eight little longer, where matrices are cut in fours:
    three ids have the price of four rows, and what joins seven ids beside it that of eight."""
    rows = 1.0, 1.0, 1.3, 0.95, 1.2, 1.25, 1.5, 1.1, 1.4, 1.45, 1.7, 1.3
    model, costs = ModelWorth(Acceptance(start=0.5)), costs_of(*rows)
    two = model.best(costs, drafts_of(0.1), steps=2)
    assert two.rate == pytest.approx(two.tokens / (0.95 + 0.2))
    beside = Plan(7, 1.6 / 1.1, 1.6)
    joined = model.best(costs, drafts_of(0.1), steps=1, beside=beside)
    assert joined.rate == pytest.approx(joined.tokens / (1.1 + 0.1))


@given(st.floats(0.05, 0.9), st.integers(0, 3), st.floats(0.0, 0.99))
def test_right_ids_that_a_pass_reads_ahead_count_as_passes(
    right: float, ahead: int, part: float
) -> None:
    model, costs = ModelWorth(Acceptance(start=right)), costs_of(1.0, 1.0)
    free = [0.0] * 8
    reached = [model.best(costs, free, steps=n).tokens for n in range(1, 7)]
    for passes in range(1, 3):
        found = model.best(costs, free, steps=passes, ahead=ahead + part).tokens
        before, after = reached[passes + ahead - 1 : passes + ahead + 1]
        assert found == pytest.approx(before + part * (after - before))


@given(st.lists(st.tuples(st.floats(-9.0, 9.0), st.integers(1, 9)), max_size=60))
@example([(-8.0, 9)] * 10 + [(8.0, 1)] * 10)
def test_drafting_rests_once_the_loss_exceeds_its_bound(rounds: list[tuple[float, int]]) -> None:
    losses = Losses()
    for lost, tokens in rounds:
        losses.account(lost, tokens, drafted=True)
    # What was gained before the credit was full is forgotten: the worst stretch decides.
    each, tokens = [lost for lost, _ in rounds], sum(tokens for _, tokens in rounds)
    worst = max((sum(each[start:]) for start in range(len(each))), default=0.0)
    lost = max(sum(each), worst - CREDIT) if each else 0.0
    bound = min(1.5 + 0.015 * tokens, MOST_LOST + SHARE * tokens)
    if lost > bound + 1e-6:
        assert losses.forbids(1.0)
    if lost < bound - _REST - 1e-6:
        assert not losses.forbids(1.0)


def test_early_on_little_may_be_lost() -> None:
    """At most a twenty-fifth of the first 50 tokens, a fortieth of 300, half a percent of 3,000."""
    for tokens, most in ((50, 2.25), (300, 6.0), (3000, 16.0)):
        assert Balance(lost=most, tokens=tokens).excess <= 0.0
        assert Balance(lost=most + 0.1, tokens=tokens).excess > 0.0


def test_requests_together_may_lose_what_one_of_their_length_may() -> None:
    """The second one does not suffer for the first, but at last all of them have lost enough."""
    latest, spent, lost = Losses(), list[bool](), 0.0
    for _ in range(20):
        losses = latest.next_request()
        for _ in range(32):
            drafts = not losses.forbids(1.0)
            lost += 0.5 * drafts
            losses.account(0.5 * drafts, 1, drafted=drafts)
        spent.append(losses.forbids(1.0))
        latest = losses
    assert spent[0]
    assert MOST_LOST - 1 < lost < MOST_LOST + 20 * 32 * SHARE + 1


def test_requests_that_take_turns_have_balances_of_their_own() -> None:
    """A short one that begins, and rests at once, leaves the long one as it was."""
    latest = Losses()
    long = latest.next_request()
    long.account(-20.0, 200, drafted=True)
    short = long.next_request()
    assert not short.forbids(1.0)
    short.account(2.0, 1, drafted=True)
    assert short.forbids(1.0)
    assert not long.forbids(1.0)


def test_a_rest_forbids_little_that_promises_much() -> None:
    """Tries that lose grow rare; after one that gains, the next may follow at once."""
    losses, tried = Losses(), []
    losses.account(1000.0, 1, drafted=True)
    for at in range(400):
        assert losses.forbids(1.1)
        drafts = not losses.forbids(2.0)
        tried += [at] * drafts
        losses.account(1.0 * drafts, 1, drafted=drafts)
    assert tried == [2, 7, 16, 33, 66, 131, 260]
    assert losses.forbids(2.0)
    assert not losses.forbids(5.0)  # what promises more waits less
    losses = losses.next_request()
    while losses.forbids(2.0):
        losses.account(0.0, 1, drafted=False)
    losses.account(-4.0, 5, drafted=True)
    assert not losses.forbids(2.0)


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


def test_another_requests_rounds_do_not_time_a_pass_that_ran_ahead() -> None:
    """It may have been computed meanwhile, in no time."""
    knowledge = Knowledge(costs=costs_of(1.0, 1.1))
    one, other = (Controller(knowledge, TreeDrafter([])) for _ in range(2))
    contexts = {controller: Context([TargetId(1)]) for controller in (one, other)}

    def round_of(controller: Controller, seconds: float) -> None:
        context = contexts[controller]
        assert controller.propose(context, 100).run_ahead
        context.extend([TargetId(1)])
        controller.observe(
            Round(limit=9, tree=EMPTY_TREE, path=(), emitted=(TargetId(1),), verification=seconds)
        )

    round_of(one, 1.0)
    round_of(one, 1.0)
    for _ in range(2):
        round_of(other, 1.0)
        round_of(one, 1e-6)
    assert knowledge.costs.plain == pytest.approx(1.0)
