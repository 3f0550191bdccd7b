"""Looking for the likeliest next target token: early, it is nearly that of looking further."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.interfaces import Shortlist
from tokalign.runtime.translation.cover_search import Outlook
from tokalign.tokenizer.vocabulary import TargetId

LEAST = 0.01

probabilities = st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=8)


@st.composite
def shortlists(draw: st.DrawFn) -> list[Shortlist]:
    """Lists as a model gives them: at each position probabilities that add up to 1 or less."""
    lists = []
    for back in range(draw(st.integers(1, 4))):
        weights = draw(probabilities)
        total = sum(weights) * draw(st.floats(1.0, 3.0))
        kept = log(draw(st.floats(0.01, 0.9))) if back else 0.0
        ids = draw(st.lists(st.integers(0, 50), min_size=len(weights), max_size=len(weights)))
        lists.append(Shortlist(ids, [log(w / total) for w in weights], kept))
    return lists


def translate(_: int, token: int) -> tuple[bytes, tuple[TargetId, ...] | None]:
    """Several draft tokens begin with the same target token; some are doubtful or not known yet."""
    kind = token % 7
    return b"x", None if kind == 5 else () if kind == 6 else (TargetId(kind),)


def outlook(lists: list[Shortlist]) -> Outlook:
    return Outlook(lists, LEAST, translate)


@given(shortlists())
def test_a_token_that_leads_early_can_only_be_overtaken_by_most_of_what_is_left(
    lists: list[Shortlist],
) -> None:
    early, late = outlook(lists), outlook(lists)
    early.look(until_clear=True)
    late.look()
    assert bool(early.mass) == bool(late.mass)
    if early.mass:
        leader = max(early.mass, key=early.mass.__getitem__)
        left = sum(late.mass.values()) - sum(early.mass.values())
        assert late.mass[leader] + left * 2 / 3 >= max(late.mass.values()) - 1e-9
    early.look()
    assert early.mass == pytest.approx(late.mass)
    assert early.ways == late.ways
    assert early.doubtful == late.doubtful


@given(shortlists())
def test_mass_is_the_sum_over_the_covers_that_are_likely_enough(lists: list[Shortlist]) -> None:
    found = outlook(lists)
    found.look()
    taken_back = [sum(at.kept for at in lists[: back + 1]) for back in range(len(lists))]
    expected: dict[int, float] = {}
    for back, at in enumerate(lists):
        for token, logprob in zip(at.ids, at.logprobs, strict=True):
            probability = exp(taken_back[-1] - taken_back[back] + logprob)
            if token % 7 < 5 and probability >= LEAST * found.possible:
                expected[token % 7] = expected.get(token % 7, 0.0) + probability
    if expected:
        assert found.mass == pytest.approx(expected)
    else:  # then one that is less likely will do
        assert len(found.mass) <= 1


@given(shortlists())
def test_the_likeliest_way_to_a_token_is_the_one_taken(lists: list[Shortlist]) -> None:
    found = outlook(lists)
    found.look()
    for token in found.mass:
        ways = [cover[0] for cover, _, ids in found.ways if ids[0] == token]
        assert found.way_to(token)[0][0] == max(ways)


def test_nothing_is_expected_where_the_context_is_full() -> None:
    found = outlook([])
    found.look(until_clear=True)
    assert not found.mass
    assert not found.ways
