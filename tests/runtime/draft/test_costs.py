"""Times that are learned come near what is observed, and follow a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.draft.costs import BARE, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import ModelKnowledge


def test_times_of_counts_never_seen_follow_their_neighbours() -> None:
    times = PassTimes([1.0, 1.2, 1.4, 1.6], weight=0)
    assert not times.is_calibrated
    times.observe(1, 0.030)
    assert times(3) == pytest.approx(0.042)
    times.observe(3, 0.084)
    assert times(2) == pytest.approx(1.2 * 0.045)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 0.1)), max_size=12))
def test_a_table_holds_the_time_of_every_count(observed: list[tuple[int, float]]) -> None:
    times = PassTimes([1.0, 1.2, 1.4, 1.6], weight=0)
    for count, seconds in observed:
        times.observe(count, seconds)
    assert times.table(12) == tuple(times(count) for count in range(1, 13))


def test_what_was_not_measured_is_explored_step_by_step() -> None:
    assumed, measured = PassTimes([1.0, 1.2], weight=0), PassTimes([1.0, 1.2], weight=4)
    assert assumed.reach == 3
    assumed.observe(3, 0.02)
    assert assumed.reach == 5
    assert measured.reach == 4
    measured.observe(4, 0.02)
    assert measured.reach == 6


def test_one_slow_pass_is_not_believed_many_are() -> None:
    times = PassTimes([0.010], weight=4)
    times.observe(1, 1.0)
    assert times(1) < 0.013
    for _ in range(200):
        times.observe(1, 0.050)
    assert times(1) == pytest.approx(0.050, rel=0.01)


@pytest.mark.parametrize(
    ("observed", "seconds", "later"),
    [(1, 0.024, 0.018), (8, 0.024, 0.023), (1, 0.006, 0.006)],
)
def test_what_seems_dear_and_is_left_alone_is_hoped_to_be_as_usual(
    observed: int, seconds: float, later: float
) -> None:
    """The more slowly the more often it was observed; what is cheap stays so."""
    times = PassTimes([1.0, 1.2, 1.4], weight=0)
    times.observe(1, 0.010)
    for _ in range(observed):
        times.observe(2, seconds)
    assert times(2) == pytest.approx(seconds)
    for _ in range(70):
        times.count_round()
    assert times(2) == pytest.approx(later, rel=0.02)


def test_a_count_that_is_seen_often_looks_no_cheaper_than_another() -> None:
    """Other programs delay passes of all counts alike."""
    times = PassTimes([0.010, 0.012], weight=4)
    for turn in range(200):
        times.observe(2, 0.012 * (1 + turn % 2))
    for turn in range(8):
        times.observe(1, 0.010 * (1 + turn % 2))
    assert times(2) / times(1) == pytest.approx(1.2, rel=0.1)


def test_what_is_read_again_makes_proposals_dearer_and_plain_decoding_not() -> None:
    costs = LearnedCosts(PassTimes([float(rows) for rows in range(1, 40)], weight=4))
    assert costs.by_proposed(4) == (1.0, 2.0, 3.0, 4.0, 5.0)
    for _ in range(200):
        costs.observe_rereading(3)
    plain, *proposals = costs.by_proposed(4)
    assert plain == 1.0
    assert proposals == pytest.approx([5.0, 6.0, 7.0, 8.0], abs=0.01)


def test_plain_decoding_takes_no_longer_than_a_round_of_one_row() -> None:
    """Such rounds tell that the machine has become faster, long before plain decoding is timed."""
    costs = LearnedCosts(PassTimes([1.0, 1.2], weight=0))
    for _ in range(3):
        costs.ahead.observe(BARE, 0.5)
        costs.rows.observe(1, 0.6)
    assert costs.plain == pytest.approx(0.5)
    for _ in range(30):
        costs.rows.observe(1, 0.3)
    assert costs.plain == pytest.approx(0.3, rel=0.1)
    assert costs.overlap >= 0


def test_a_reader_that_hides_whole_passes_is_not_believed_for_ever() -> None:
    """Plain decoding takes a quarter of a round of one row, at least."""
    costs = LearnedCosts(PassTimes([1.0, 1.2], weight=4))
    for _ in range(1000):
        costs.ahead.observe(BARE, 1e-9)
    assert costs.plain == pytest.approx(0.25)


def test_running_ahead_hides_host_time_at_most_half_a_round() -> None:
    def costs(host: float) -> LearnedCosts:
        return LearnedCosts(PassTimes([1.0], weight=4), host=host)

    assert costs(0.2).plain == pytest.approx(0.8)
    assert costs(0.2).overlap == pytest.approx(0.25)
    assert costs(0.9).plain == pytest.approx(0.5)


def test_rows_never_computed_are_free_where_hope_is_asked_for() -> None:
    costs = LearnedCosts(PassTimes([1.0, 1.2, 1.4], weight=4))
    assert costs.by_proposed(4) == pytest.approx((1.0, 1.2, 1.4, 1.6, 1.8))
    assert costs.by_proposed(4, hopeful=True) == pytest.approx((1.0, 1.2, 1.4, 1.4, 1.4))
    assert costs.by_proposed(1, hopeful=True) == pytest.approx((1.0, 1.2))


def test_a_draft_takes_longer_where_the_target_does() -> None:
    drafts = PassTimes([0.1, 0.2], weight=4)
    known = ModelKnowledge(drafts)
    assert known.times(2, 0.020) == pytest.approx([0.002, 0.004])
    assert known.times(2, 0.040) == pytest.approx([0.004, 0.008])
    for _ in range(40):
        drafts.observe(1, 0.15)
    assert known.times(2, 0.020) == pytest.approx([0.003, 0.006], rel=0.05)


def test_a_draft_is_timed_anew_where_the_pass_that_it_was_counted_in_is_doubted() -> None:
    drafts = PassTimes([0.1, 0.2], weight=0)
    drafts.observe(1, 0.8)
    drafts.forget()
    assert drafts.table(2) == pytest.approx((0.1, 0.2))
    drafts.observe(2, 0.1)
    assert drafts.table(2) == pytest.approx((0.05, 0.1)), "no time is known that could bound it"


def test_another_thread_may_doubt_times_while_they_are_read() -> None:
    class Shared(PassTimes):
        is_read = False

        def _ratio(self, count: int) -> float:
            if self.is_read:
                self.is_read = False
                self.doubt()
            return super()._ratio(count)

    times = Shared([1.0, 1.5, 2.0], weight=0)
    times.observe(1, 1.0)
    times.observe(3, 9.0)
    times.count_round()
    times.is_read = True
    assert times(1) == 1.0
