"""Rounds: what was accepted, outcomes that add up, and statistics as a count by hand gives them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from saved_runs import rounds
from trees import ids

from tokalign.runtime.rounds import Finished, Outcome, Round, Started
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree


def test_an_accepted_path_through_a_tree() -> None:
    """First 1 or 7; after the 1 comes 2 or 8, after the 8 comes 9."""
    tree = TokenTree(ids(1, 2, 7, 8, 9), (-1, 0, -1, 0, 3), ("a", "a", "b", "b", "b"))
    one = Round(limit=9, tree=tree, path=(0, 3), emitted=ids(1, 8, 5))
    assert one.accepted == 2
    assert one.sources == ("a", "b", "target")
    assert [tree.ids[i] for i in one.rejected] == [9]
    assert one.outcome(2) is Outcome.CORRECTED
    whole = Round(limit=9, tree=tree, path=(0, 3, 4), emitted=ids(1, 8, 9, 5))
    assert whole.outcome(3) is Outcome.BONUS
    none = Round(limit=9, tree=tree, path=(), emitted=ids(5))
    assert [tree.ids[i] for i in none.rejected] == [1, 7]


@given(rounds())
def test_outcomes_add_up(one: Round) -> None:
    found = Counter(one.outcome(index) for index in range(len(one.emitted)))
    assert found[Outcome.ACCEPTED] == one.accepted
    own = len(one.emitted) - one.accepted
    assert found[Outcome.CORRECTED] + found[Outcome.BONUS] + found[Outcome.UNDRAFTED] == own
    assert not found[Outcome.UNDRAFTED] or not one.tree
    assert not found[Outcome.CORRECTED] or one.accepted < len(one.tree)


def round_of(
    proposed: int, accepted: int, *, limit: int = 9, source: str = "draft", read: int = 0
) -> Round:
    """A round of 10 ms, 8 of them in the pass of the target."""
    return Round(
        limit=limit,
        tree=TokenTree.chain(ids(*range(proposed)), source),
        path=tuple(range(accepted)),
        emitted=ids(*range(accepted + 1)),
        rows=read + 1 + proposed,
        draft_passes=2,
        counts={"healed": 1, "masked": 0},
        seconds=0.010,
        drafting=0.002,
        verification=0.008,
    )


def fold(*rounds: Round) -> Statistics:
    statistics = Statistics()
    for event in [Started(50), *rounds, Finished("length")]:
        statistics.observe(event)
    return statistics


def test_three_rounds_match_a_count_by_hand() -> None:
    prompt = 49  # of its 50 ids, the last one's row is the first round's own
    found = fold(
        round_of(2, 0, read=prompt), round_of(3, 3, source="dictionary"), round_of(0, 0)
    ).summary()
    assert found["rounds"] == 3
    assert found["generation_tokens"] == 1 + 4 + 1
    assert found["tokens_per_round"] == 2
    assert found["num_spec_steps"] == 2
    assert found["num_draft_tokens"] == 5
    assert found["num_accepted_draft_tokens"] == 3
    assert found["mean_acceptance_length"] == 2.5
    assert found["draft_acceptance_rate"] == 0.6
    assert found["acceptance_histogram"] == [1, 0, 0, 1]
    assert found["rows_per_round"] == (3 + 4 + 1) / 3
    assert found["accepted_per_round"] == 1
    assert found["empty_rounds"] == 1
    assert found["draft_passes_per_round"] == 2
    assert found["translation_counts"] == {"healed": 3}
    assert found["per_source"] == {
        "dictionary": {"proposed": 3, "accepted": 3},
        "draft": {"proposed": 2, "accepted": 0},
        "target": {"proposed": 0, "accepted": 3},
    }
    assert found["finish_reason"] == "length"


def test_rates_of_output_leave_out_the_first_round() -> None:
    found = fold(round_of(2, 0), round_of(2, 2), round_of(2, 0)).summary()
    assert found["prompt_tokens_per_second"] == pytest.approx(50 / 0.010)
    assert found["tokens_per_second"] == pytest.approx(4 / 0.020)
    assert found["host_ms_per_round"] == {"p50": 2.0, "p99": 2.0}


def test_a_round_with_a_limit_of_zero_is_not_counted_as_empty() -> None:
    assert fold(round_of(0, 0, limit=0)).empty_rounds == 0


def test_all_figures_are_zero_before_the_first_round() -> None:
    found = Statistics().summary()
    assert found["tokens_per_second"] == found["tokens_per_round"] == 0
    assert found["acceptance_histogram"] == []
