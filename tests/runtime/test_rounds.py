"""Rounds: what is saved is read back, outcomes add up, and what is no run is refused."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_runs import rounds

from tokalign.errors import UsageError
from tokalign.runtime.rounds import Outcome, Round, SavedRun, tokens_of
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


@given(st.lists(rounds(), max_size=6))
def test_what_is_saved_is_read_back(log: list[Round]) -> None:
    vocabulary = [b"" if i % 7 == 0 else bytes([i, 0xC4]) for i in range(30)]
    tokens, specials = tokens_of(log, vocabulary, {0: "<s>", 7: "</s>"})
    run = SavedRun(
        rounds=tuple(log), token_bytes=tokens, special_tokens=specials, figures={"text": "ż"}
    )
    assert SavedRun.from_json(json.loads(json.dumps(run.to_json())), name="x") == run
    assert {*tokens, *specials} == {i for one in log for i in one.tree.ids + one.emitted}


def test_an_accepted_path_through_a_tree() -> None:
    """First 1 or 7; after the 1 comes 2 or 8, after the 8 comes 9."""
    tree = TokenTree(ids(1, 2, 7, 8, 9), (-1, 0, -1, 0, 3), ("a", "a", "b", "b", "b"))
    one = Round(limit=9, tree=tree, path=(0, 3), emitted=ids(1, 8, 5))
    assert one.accepted == 2
    assert one.sources == ("a", "b", "target")
    assert [tree.ids[i] for i in one.rejected] == [9]
    assert one.outcome(2) is Outcome.CORRECTED
    assert Round.from_json(one.to_json()) == one
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


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


GOOD = Round(limit=3, tree=TokenTree.chain(ids(1), "draft"), path=(), emitted=ids(2)).to_json()


@pytest.mark.parametrize(
    "saved",
    [
        [],
        3,
        {"text": "without a trace"},
        {"trace": [{}], "token_bytes": {}, "special_tokens": {}},
        {"trace": [GOOD], "token_bytes": {"1": "zz"}, "special_tokens": {}},
        {"trace": [GOOD | {"sources": []}], "token_bytes": {}, "special_tokens": {}},
        {"trace": [GOOD | {"accepted": 1}], "token_bytes": {}, "special_tokens": {}},
    ],
)
def test_what_is_no_run_is_refused(saved: object) -> None:
    with pytest.raises(UsageError, match=r"run\.json.*tokalign decode"):
        SavedRun.from_json(saved, name="run.json")
