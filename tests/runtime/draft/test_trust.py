"""Probabilities that are learned come true as often as they say, and follow a change."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.runtime.draft.mixing import LEAST, Trust
from tokalign.runtime.draft.neural import Acceptance

probabilities = st.floats(0, 1)


@settings(deadline=None)
@given(probabilities, probabilities)
def test_nothing_is_changed_before_anything_was_learned(one: float, other: float) -> None:
    trust = Trust(rate=0.1)
    kept = min(max(one, LEAST), 1 - LEAST)
    assert trust.calibrated(one, "a") == pytest.approx(kept)
    if one < other:
        assert trust.calibrated(one, "a") <= trust.calibrated(other, "a")


@pytest.mark.parametrize(("said", "true"), [(0.5, 0.8), (0.9, 0.3), (0.2, 0.2)])
def test_what_is_said_becomes_what_is_true(said: float, true: float) -> None:
    trust, random, found = Trust(rate=0.05), Random(1), []
    for _ in range(3000):
        found.append(trust.calibrated(said, "a"))
        trust.learn(found[-1], "a", right=random.random() < true)
    assert sum(found[500:]) / 2500 == pytest.approx(true, abs=0.03)
    assert trust.calibrated(said, "b") == pytest.approx(said)


def test_a_shift_carries_over_to_other_probabilities() -> None:
    trust = Trust(rate=0.1)
    for _ in range(20):
        trust.learn(trust.calibrated(0.5, "a"), "a", right=True)
    assert trust.calibrated(0.3, "a") > 0.45
    assert trust.calibrated(0.8, "a") > 0.87


@given(st.floats(0.05, 0.95))
def test_acceptance_is_learned_by_position(right: float) -> None:
    chance, acceptance = Random(3), Acceptance()
    for _ in range(2000):
        first = chance.random() < right
        acceptance.observe(2, 2 if first else 0)
    first, second, third = acceptance.probabilities(3)
    assert first == pytest.approx(right, abs=0.15)
    assert second > 0.9
    assert third == pytest.approx(second, abs=0.05)  # never seen: as good as those before it


def test_a_change_of_the_text_is_noticed() -> None:
    acceptance = Acceptance()
    for _ in range(1000):
        acceptance.observe(1, 1)
    for _ in range(30):
        acceptance.observe(1, 0)
    assert acceptance.probabilities(1)[0] < 0.35
