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


@given(st.lists(rounds(), max_size=6))
def test_what_is_saved_is_read_back(log: list[Round]) -> None:
    vocabulary = [b"" if i % 7 == 0 else bytes([i, 0xC4]) for i in range(30)]
    tokens, specials = tokens_of(log, vocabulary, {0: "<s>", 7: "</s>"})
    run = SavedRun(
        rounds=tuple(log), token_bytes=tokens, special_tokens=specials, figures={"text": "ż"}
    )
    assert SavedRun.from_json(json.loads(json.dumps(run.to_json())), name="x") == run
    assert {*tokens, *specials} == {i for one in log for i in one.proposed + one.emitted}


def test_an_accepted_path_through_a_tree() -> None:
    """1 or 7 first; behind the 1 a 2 or an 8, behind the 8 a 9."""
    tree = {"limit": 9, "proposed": (1, 2, 7, 8, 9), "parents": (-1, 0, -1, 0, 3)}
    one = Round(**tree, sources=("a", "a", "b", "b", "b"), accepted=2, emitted=(1, 8, 5))
    assert one.path == [0, 3]
    assert [one.proposed[i] for i in one.rejected] == [9]
    assert one.outcome(2) is Outcome.CORRECTED
    whole = Round(**tree, sources=("a",) * 5, accepted=3, emitted=(1, 8, 9, 5))
    assert whole.outcome(3) is Outcome.BONUS
    none = Round(**tree, sources=("a",) * 5, accepted=0, emitted=(5,))
    assert [none.proposed[i] for i in none.rejected] == [1, 7]


@given(rounds())
def test_outcomes_add_up(one: Round) -> None:
    found = Counter(one.outcome(index) for index in range(len(one.emitted)))
    assert found[Outcome.ACCEPTED] == one.accepted
    own = len(one.emitted) - one.accepted
    assert found[Outcome.CORRECTED] + found[Outcome.BONUS] + found[Outcome.UNDRAFTED] == own
    assert not found[Outcome.UNDRAFTED] or not one.proposed
    assert not found[Outcome.CORRECTED] or one.accepted < len(one.proposed)


GOOD = Round(limit=3, proposed=(1,), sources=("draft",), accepted=0, emitted=(2,)).to_json()


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
