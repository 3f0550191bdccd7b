"""Samples: what is published of a measurement, and which attempt of a prompt counts."""

from __future__ import annotations

import json
from dataclasses import replace

from studied import CONTEXT, CONTROL, PLAIN, a_block, a_sample, measured

from lab.study.measurements import Work
from lab.study.samples import Sample, samples_of, trials


def test_a_sample_is_its_json() -> None:
    one = a_sample(CONTEXT[2])
    assert Sample.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_measurement_loses_its_ids_and_keeps_whether_they_are_right() -> None:
    found = samples_of(
        [
            measured(PLAIN, token_ids=(5, 6, 7, 8)),
            measured(CONTROL, token_ids=(5, 6, 7, 8)),
            measured(CONTEXT[2], token_ids=(5, 6, 9)),
            measured(PLAIN, a_block(2)),  # without its control
        ]
    )
    assert [(one.tokens, one.differing) for one in found] == [(4, 0), (4, 0), (3, 2)]
    assert found[0].ids == found[1].ids != found[2].ids
    assert "token_ids" not in found[0].to_json()


def test_what_follows_the_first_round() -> None:
    one = a_sample(CONTEXT[2], speed=24.0)
    assert (one.later_tokens, one.later_rounds, one.later_rows) == (12, 6, 18)
    assert one.round_seconds == 12 / 24 / 6
    assert a_sample(PLAIN, speed=0.0).round_seconds == 0


def test_the_first_attempt_that_is_not_disturbed_counts() -> None:
    speeds = {1: (10.0, 14.0), 2: (10.0, 10.5), 3: (10.0, 10.0)}
    samples = [
        a_sample(condition, a_block(repeat=attempt), speed=speed)
        for attempt, pair in speeds.items()
        for condition, speed in zip((PLAIN, CONTROL), pair, strict=True)
    ]
    [chosen] = trials(samples)
    assert (chosen.block.repeat, chosen.disturbed) == (2, False)
    [chosen] = trials(samples[:2])
    assert (chosen.block.repeat, chosen.disturbed) == (1, True)


def test_an_attempt_that_was_cut_short_does_not_count() -> None:
    first = [a_sample(c, a_block(), speed=s) for c, s in ((PLAIN, 10.0), (CONTROL, 14.0))]
    first.append(a_sample(CONTEXT[2], a_block()))
    second = [replace(one, block=a_block(repeat=2), tokens_per_second=10.0) for one in first[:2]]
    [chosen] = trials([*first, *second])
    assert chosen.block.repeat == 1


def test_speed_ups_are_of_the_same_block() -> None:
    [one] = trials(
        [
            a_sample(PLAIN, speed=10.0),
            a_sample(CONTROL, speed=10.0),
            a_sample(CONTEXT[2], speed=15.0),
            a_sample(CONTEXT[4], speed=0.0, work=Work()),
        ]
    )
    assert one.speedup(CONTEXT[2]) == 1.5
    assert one.speedup(CONTEXT[4]) is None
    assert one.speedup(replace(CONTEXT[2], k=6)) is None
