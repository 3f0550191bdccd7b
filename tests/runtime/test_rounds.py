"""Rounds: what was accepted, and outcomes that add up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from saved_runs import rounds
from trees import ids

from tokalign.runtime.rounds import Outcome, Round
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
