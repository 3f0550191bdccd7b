"""Comparisons by hand: speed-ups against plain decoding of the same prompt, in a fair order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from measured import EXACT, block, measured

from tokalign.evaluate.bench import Bench
from tokalign.evaluate.comparison import (
    BASELINES,
    CONTROL,
    ENOUGH_PROMPTS,
    PLAIN,
    Condition,
    compare,
    conditions_of,
)
from tokalign.runtime.chat import Prompt
from tokalign.runtime.drafting import Drafting

BASE = Condition(PLAIN)


def test_two_prompts_on_paper() -> None:
    found = compare(
        [
            measured(BASE, block(1), tokens_per_second=20.0),
            measured(EXACT, block(1), tokens_per_second=30.0),
            measured(BASE, block(2), tokens_per_second=10.0),
            measured(EXACT, block(2), tokens_per_second=10.0, accepted=0, rounds=4),
        ]
    )
    plain, exact = found.overall
    assert plain.condition == BASE
    assert plain.speedup == 1
    assert exact.prompts == 2
    assert exact.acceptance == 2 / 8
    assert exact.tokens_per_round == 8 / 6
    assert (exact.fewest, exact.most) == (1.25, 1.75), "the spread is over prompts"
    assert exact.draft_passes_per_round == 8 / 6
    assert exact.tokens_per_second == 20
    assert exact.speedup == pytest.approx(1.25)
    assert (exact.low, exact.high) == (1.125, 1.375)
    assert found.sets == {"questions": found.overall}


def test_a_waterfall_goes_from_tokens_per_pass_to_the_speed_by_the_clock() -> None:
    """Plain rounds take 50 ms. Two tokens a round: rows add 20 ms, drafting 10, the host 20."""
    (plain, exact) = compare(
        [
            measured(BASE, rounds=5, tokens_per_second=20.0, round_ms=50.0, pass_ms=45.0),
            measured(
                EXACT,
                rounds=3,
                tokens_per_second=20.0,
                round_ms=100.0,
                pass_ms=65.0,
                drafting_ms=10.0,
            ),
        ]
    ).overall
    assert plain.waterfall == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert exact.waterfall == pytest.approx((2.0, 100 / 70, 100 / 80, 1.0))
    assert exact.waterfall[-1] == pytest.approx(exact.speedup)


def test_ids_that_differ_are_counted() -> None:
    found = compare(
        [
            measured(BASE, token_ids=(1, 2, 3, 4)),
            measured(EXACT, token_ids=(1, 2, 9, 4, 5)),
            measured(Condition("naive", 2), token_ids=(1, 2)),
        ]
    )
    assert [row.ids_that_differ for row in found.overall] == [0, 2, 2]
    assert found.ids_that_differ == 4


def test_prompts_without_a_speed_or_without_plain_decoding() -> None:
    found = compare(
        [
            measured(BASE, block(1), tokens_per_second=0.0),
            measured(EXACT, block(1)),
            measured(EXACT, block(2)),
        ]
    )
    row = found.overall[1]
    assert (row.prompts, row.timed, row.speedup) == (1, 0, 0)


def test_sets_are_kept_apart() -> None:
    found = compare(
        measured(condition, block(prompt_set=name))
        for name in ("a", "b")
        for condition in (BASE, EXACT)
    )
    assert list(found.sets) == ["a", "b"]
    assert [row.prompts for row in found.sets["a"]] == [1, 1]
    assert [row.prompts for row in found.overall] == [2, 2]


def verdicts(speeds: dict[str, list[float]], **figures: int) -> list[str]:
    """`against_plain` of every condition, from its speeds on prompts 0, 1, ..."""
    found = compare(
        measured(condition, block(n), tokens_per_second=speed, **figures)
        for condition in (*BASELINES, EXACT)
        for n, speed in enumerate(speeds.get(condition.name, []))
    )
    return [row.against_plain for row in found.overall]


def test_only_what_clears_the_control_is_faster_or_slower() -> None:
    plain, again = [10.0] * 8, [9.0, 10.0, 10.0, 11.0] * 2
    both = {PLAIN: plain, CONTROL: again}
    assert verdicts(both | {"exact": [12.0] * 8}) == ["", "", "faster"]
    assert verdicts(both | {"exact": [8.0] * 8}) == ["", "", "slower"]
    assert verdicts(both | {"exact": [10.5, 9.5, 12.0, 8.0] * 2}) == ["", "", "no difference"]
    assert verdicts({PLAIN: plain, "exact": [12.0] * 8}) == ["", ""]
    unaccepted = verdicts({PLAIN: plain, CONTROL: plain, "exact": [12.0] * 8}, accepted=0)
    assert unaccepted[2] == "no difference", "it accepted nothing"
    few = ENOUGH_PROMPTS - 1
    assert verdicts({PLAIN: plain[:few], CONTROL: again[:few], "exact": [12.0] * few})[2] == ""


def test_noise_is_not_called_faster() -> None:
    """Equal conditions on a noisy machine, at the fewest prompts that decide anything."""
    chance = random.Random(5)

    def speeds() -> list[float]:
        return [10 * chance.lognormvariate(0, 0.2) for _ in range(ENOUGH_PROMPTS)]

    claims = [
        verdicts({PLAIN: speeds(), CONTROL: speeds(), "exact": speeds()})[2] for _ in range(1000)
    ]
    assert claims.count("faster") < 25
    assert claims.count("slower") < 25


# -- what is measured ------------------------------------------------------------------------------


def test_every_condition_takes_every_place() -> None:
    """Over as many prompts as there are conditions, each stands at each place once."""
    conditions = [Condition(name) for name in "abcde"]
    prompts = {block(number): lambda _: Prompt(target=[]) for number in range(1, 6)}
    decoder: Any = None
    fair = Bench(decoder=decoder, prompts=prompts, conditions=conditions, max_tokens=1, seed=3)
    order = list(fair.schedule())
    assert Counter(order) == Counter((b, c) for b in prompts for c in conditions)
    places = Counter((condition, place % 5) for place, (_, condition) in enumerate(order))
    assert set(places.values()) == {1}
    assert order == list(fair.schedule())


def test_conditions_are_those_that_the_pair_allows(demo_pair: Any) -> None:
    target, draft = (model.tokenizer for model in demo_pair)

    def names(pair: Any, *lengths: int) -> set[str]:
        return {one.name for one in conditions_of(Drafting(), lengths=[*lengths], pair=pair)}

    alone = {PLAIN, CONTROL, "copy", "hybrid"}
    assert names(None, 2) == alone
    assert names((target, target), 2) - alone == {"none"}
    assert names((target, draft), 3) - alone == {"context:5", "intersection", "exact"}
    same = conditions_of(Drafting(), lengths=[2, 4], pair=(target, target))
    assert [one.k for one in same if one.name == "none"] == [2, 4]
