"""Acceptances that are learned come near what is observed, and follow a change of the text."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.draft.neural import Acceptance


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
