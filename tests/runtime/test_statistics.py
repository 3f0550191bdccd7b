"""Statistics of three rounds, compared with a count by hand."""

from __future__ import annotations

import pytest

from tokalign.runtime.rounds import Finished, Round, Started
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def ids(count: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, range(count)))


def round_of(
    proposed: int, accepted: int, *, limit: int = 9, source: str = "draft", read: int = 0
) -> Round:
    """A round of 10 ms, 8 of them in passes of the models."""
    return Round(
        limit=limit,
        tree=TokenTree.chain(ids(proposed), source),
        path=tuple(range(accepted)),
        emitted=ids(accepted + 1),
        rows=read + 1 + proposed,
        draft_passes=2,
        counts={"healed": 1, "masked": 0},
        seconds=0.010,
        model_seconds=0.008,
        translation_seconds=0.0007,
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
    assert found["translation_ms_per_round"] == {"p50": 0.7, "p99": 0.7}


def test_a_round_with_a_limit_of_zero_is_not_counted_as_empty() -> None:
    assert fold(round_of(0, 0, limit=0)).empty_rounds == 0


def test_all_figures_are_zero_before_the_first_round() -> None:
    found = Statistics().summary()
    assert found["tokens_per_second"] == found["tokens_per_round"] == 0
    assert found["acceptance_histogram"] == []
