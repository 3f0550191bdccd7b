"""Drafters without a model: dictionary, prompt lookup, and several asked in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokalign.runtime.context import Context
from tokalign.runtime.draft.fixed_order import FirstOf
from tokalign.runtime.draft.lookup import DictionaryDrafter, PromptLookupDrafter
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.proposal import Proposal
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


TABLE = DictSpecTable.from_entries(
    {ids(1): (ids(2, 3), 0.5), ids(9, 1): (ids(4, 5, 6), 0.75)}, vocabulary_size=100
)


def test_a_dictionary_proposes_what_follows_the_longest_match() -> None:
    drafter = DictionaryDrafter(TABLE)
    assert drafter.propose(Context(ids(7, 1)), 9).tree.ids == (2, 3)
    assert drafter.propose(Context(ids(9, 1)), 9).tree.ids == (4, 5, 6)
    assert drafter.propose(Context(ids(9, 1)), 2).tree.ids == (4, 5)
    assert DictionaryDrafter(TABLE, max_tokens=1).propose(Context(ids(1)), 9).tree.ids == (2,)
    assert drafter.propose(Context(ids(1, 9)), 9) == Proposal()
    assert drafter.propose(Context(ids()), 9) == Proposal()


def published_prompt_lookup(context: list[int], limit: int) -> list[int]:
    """By searching from the start, as published: the longest n-gram, its first occurrence."""
    for size in (3, 2, 1):
        end = context[-size:]
        for at in range(len(context) - size):
            if context[at : at + size] == end and len(end) == size:
                return context[at + size : at + size + min(10, limit)]
    return []


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 12), st.integers(1, 39))
def test_prompt_lookup_by_index_is_prompt_lookup_by_search(
    numbers: list[int], limit: int, first: int
) -> None:
    """Also when the context grows between two proposals."""
    drafter = PromptLookupDrafter()
    context = Context(ids(*numbers[:first]))
    assert list(drafter.propose(context, limit).tree.ids) == published_prompt_lookup(
        numbers[:first], limit
    )
    context.extend(ids(*numbers[first:]))
    found = drafter.propose(context, limit)
    assert list(found.tree.ids) == published_prompt_lookup(numbers, limit)
    assert set(found.tree.sources) <= {"prompt-lookup"}


class Costly:
    """A drafter with a given answer and costs."""

    def __init__(self, *numbers: int) -> None:
        self._ids = ids(*numbers)

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(
            tree=TokenTree.chain(self._ids, "costly"),
            draft_passes=2,
            counts={"absorbed": 1},
            model_seconds=0.5,
        )


def test_the_first_proposal_counts_and_all_costs_do() -> None:
    context = Context(ids(9, 1))
    empty = FirstOf([Costly(), Costly()]).propose(context, 5)
    assert (empty.tree.ids, empty.draft_passes, empty.counts) == ((), 4, {"absorbed": 2})
    found = FirstOf([Costly(), DictionaryDrafter(TABLE), Costly(8)]).propose(context, 5)
    assert found.tree.sources == ("dictionary",) * 3
    assert (found.draft_passes, found.model_seconds) == (2, 0.5)


def test_only_a_drafter_that_never_proposes_lets_the_target_run_ahead() -> None:
    context = Context(ids(7))
    assert NoDrafter().propose(context, 5).run_ahead
    assert FirstOf([NoDrafter()]).propose(context, 5).run_ahead
    assert not FirstOf([NoDrafter(), DictionaryDrafter(TABLE)]).propose(context, 5).run_ahead
