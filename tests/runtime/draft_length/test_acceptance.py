"""Acceptances that are learned come near what is observed, and follow a change of the text."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.draft_length.acceptance import Acceptance, SourceTrust
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


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


def test_probabilities_that_a_source_states_become_true() -> None:
    trust, chance = SourceTrust(), Random(1)
    tree = TokenTree.chain([TargetId(7)], "copy", [0.5])
    for _ in range(2000):
        trust.learn(tree, [TargetId(7 if chance.random() < 0.9 else 8)])
    assert trust.probabilities(tree) == [pytest.approx(0.9, abs=0.08)]
    other = TokenTree.chain([TargetId(7)], "dictionary", [0.5])
    assert trust.probabilities(other) == [pytest.approx(0.5)]


def test_probabilities_that_a_source_does_not_state_are_learned_by_depth() -> None:
    trust, tree = SourceTrust(), TokenTree.chain([TargetId(1), TargetId(2)], "lookup")
    for _ in range(300):
        trust.learn(tree, [TargetId(1), TargetId(5)])
    first, second = trust.probabilities(tree)
    assert first > 0.9
    assert second < 0.1


def test_of_a_tree_only_ids_whose_place_was_reached_tell_anything() -> None:
    """8 follows 7, but 9 came: nothing is learned of "copy", which proposed 8."""
    trust = SourceTrust()
    tree = TokenTree((TargetId(7), TargetId(8)), (-1, 0), ("dictionary", "copy"), (0.5, 0.5))
    for _ in range(50):
        trust.learn(tree, [TargetId(9), TargetId(8)])
    first, second = trust.probabilities(tree)
    assert first < 0.2
    assert second == pytest.approx(0.5)
