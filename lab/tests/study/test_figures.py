"""Figures by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studied import CONTEXT, CONTROL, COPY, PLAIN, a_block, a_result, a_sample

from lab.study.conditions import Condition
from lab.study.figures import BUCKETS, Row, bootstrap, bucket_name, groups_of
from lab.study.measurements import Surroundings, Work
from lab.study.samples import Sample, trials


def test_groups_are_all_prompts_and_each_set_at_each_temperature() -> None:
    samples = list(a_result(prompts=2).samples)
    samples += [
        replace(one, block=replace(one.block, temperature=0.7))
        for one in samples
        if one.condition != COPY
    ]
    found = groups_of(trials(samples))
    assert [(g.prompt_set, g.temperature) for g in found] == [
        (name, t) for t in (0.0, 0.7) for name in ("", "encyclopedic", "instructions", "questions")
    ]
    assert [row.prompts for row in found[0].rows] == [6] * 5
    assert [row.condition for row in found[0].rows] == [PLAIN, CONTROL, *CONTEXT.values(), COPY]
    assert len(found[4].rows) == 4
    assert found[4].name == "all prompts, T = 0.7"


def test_a_row_by_hand() -> None:
    tree = Work(
        rows={1: 1, 5: 2}, first_tokens=2, first_seconds=0.5, later_passes=4,
        chain_proposed=6, chain_accepted=3,
    )  # fmt: skip
    exact = Condition("exact", 2, "draft")
    found = groups_of(
        trials(
            [
                a_sample(PLAIN, speed=10.0),
                a_sample(CONTROL, speed=10.0),
                a_sample(
                    exact, speed=16.0, tokens=9, rounds=4, proposed=12, accepted=5, draft_passes=6,
                    work=tree, differing=1, surroundings=Surroundings(joules=18.0, peak_gb=2.5),
                ),
            ]
        )
    )  # fmt: skip
    row = found[0].rows[-1]
    assert row.condition == exact
    assert (row.chain_acceptance, row.tree_acceptance) == (3 / 6, 5 / 12)
    assert row.tokens_per_round == 9 / 4
    assert (row.rows_per_round, row.tokens_per_row) == (11 / 3, 7 / 11)
    assert row.passes_per_round == 6 / 4
    assert (row.speedup, row.interval) == (1.6, (1.6, 1.6))
    assert (row.first_ms, row.peak_gb, row.joules_per_token) == (500, 2.5, 2.0)
    assert row.outputs_that_differ == 1
    assert row.break_even is None
    assert row.buckets == (None, None, None, (1.6, 1), None, None)


def test_the_first_token_is_that_of_prompts_that_were_read_and_energy_that_of_the_others() -> None:
    def sample(number: int, reads: bool | None, seconds: float, joules: float) -> list[Sample]:
        block = a_block(number)
        work = replace(a_sample(COPY).work, reads_prompt=reads, first_seconds=seconds)
        watched = Surroundings(joules=joules)
        return [
            a_sample(PLAIN, block),
            a_sample(CONTROL, block),
            a_sample(COPY, block, work=work, surroundings=watched),
        ]

    def row(*given: list[Sample]) -> Row:
        return groups_of(trials([one for of_block in given for one in of_block]))[0].rows[-1]

    read, cached = sample(1, True, 0.5, 52.0), sample(2, False, 0.01, 26.0)
    found = row(read, cached)
    assert (found.first_ms, found.joules_per_token) == (500, 2.0)
    assert (row(cached).first_ms, row(read).joules_per_token) == (None, 4.0)
    older = row(sample(1, None, 0.5, 52.0), sample(2, None, 0.1, 26.0))
    assert (older.first_ms, older.joules_per_token) == (300, 3.0)


def test_speed_up_is_the_mean_over_prompts() -> None:
    row = groups_of(a_result(prompts=3).trials)[0].rows[2]
    assert row.speedup == pytest.approx(1.5)
    assert row.interval == pytest.approx((1.5, 1.5))
    assert row.tokens_per_second == pytest.approx(15.3)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=40))
def test_a_bootstrap_interval_is_within_the_values_and_reproducible(values: list[float]) -> None:
    low, high = bootstrap(values)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert bootstrap(values) == (low, high)


def test_a_bootstrap_interval_is_as_wide_as_the_standard_error_says() -> None:
    values = [1.0 + 0.01 * i for i in range(50)]
    low, high = bootstrap(values)
    error = (sum((v - 1.245) ** 2 for v in values) / 50 / 50) ** 0.5
    assert low == pytest.approx(1.245 - 1.96 * error, abs=0.005)
    assert high == pytest.approx(1.245 + 1.96 * error, abs=0.005)


def test_buckets_are_those_of_the_polish_study() -> None:
    assert [bucket_name(one) for one in BUCKETS] == [
        "< 30%", "30%–40%", "40%–50%", "50%–60%", "60%–70%", "≥ 70%"
    ]  # fmt: skip


def test_auto_has_neither_break_even_nor_buckets() -> None:
    auto = Condition("exact", "auto", "draft")
    samples = [
        a_sample(c, a_block(n), speed=10.0 + n) for n in range(1, 6) for c in (PLAIN, CONTROL, auto)
    ]
    row = groups_of(trials(samples))[0].rows[-1]
    assert row.condition == auto
    assert (row.break_even, row.buckets) == (None, ())
