"""The tables of a pair answer as brute force does, and refuse what no builder makes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tables import bundle_of

from tokalign.tables.alignment import HealingTrie, Intersection, MergeSites, match_roles
from tokalign.tokenizer.vocabulary import Roles

WORDS = [bytes(word) for n in range(4) for word in product(b"ab", repeat=n)]


def int32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("theirs", "end"),
    [({"turn_end": 8}, 8), ({"turn_end": None}, 5), ({"turn_end": 5}, 5)],
)
def test_every_end_of_the_draft_is_the_end_of_a_turn_of_the_target(theirs: Any, end: int) -> None:
    """Not the lowest of the target's ends, unless it has no turns."""
    draft = Roles(bos=1, eos=frozenset({2, 3}), turn_start=7, turn_end=3)
    target = Roles(bos=4, eos=frozenset({5, 8}), turn_start=6, **theirs)
    assert match_roles(draft, target) == {1: 4, 2: end, 3: end, 7: 6}
    assert match_roles(Roles(), target) == match_roles(draft, Roles()) == {}


def test_a_turn_begins_at_its_own_token_even_if_that_ends_one() -> None:
    draft = Roles(eos=frozenset({2}), turn_start=2)
    assert match_roles(draft, Roles(eos=frozenset({5}), turn_start=6)) == {2: 6}


def test_pairs_are_counted_by_what_they_spell() -> None:
    found = Intersection(int32(1, 1, -1, 0), int32(3, 0))
    assert found.pairs == 2
    assert [found.target_of(i) for i in range(4)] == [1, 1, None, 0]  # type: ignore[arg-type]
    assert Intersection(int32(-1), int32(-1)).draft_of(0) is None  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(WORDS), max_size=20, unique=True), st.sampled_from(WORDS))
def test_what_extends_bytes_is_what_begins_with_them_and_is_longer(
    tokens: list[bytes], pending: bytes
) -> None:
    found = HealingTrie(tokens).extending(pending)
    expected = sorted(
        (token, i)
        for i, token in enumerate(tokens)
        if token.startswith(pending) and len(token) > len(pending)
    )
    assert found.tolist() == [i for _, i in expected]


@given(st.lists(st.sampled_from(WORDS[1:]), max_size=6), st.sampled_from(WORDS))
def test_a_site_is_absorbed_with_whatever_follows_it(sites: list[bytes], text: bytes) -> None:
    row = sorted({s for s in sites if not any(s != t and s.startswith(t) for t in sites)})
    table = MergeSites(np.array([0, 1], dtype=np.uint32), [[], row])
    again = MergeSites.from_bundle(bundle_of(table.to_sections()), 2)
    for one in (table, again):
        assert one.absorbs(1, text) == any(text.startswith(site) for site in row)  # type: ignore[arg-type]
        assert not one.absorbs(0, text)  # type: ignore[arg-type]
        assert len(one) == len(row)
