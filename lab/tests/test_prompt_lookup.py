"""Prompt lookup by an index equals prompt lookup by a search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lab.baselines.prompt_lookup import PromptLookupDrafter
from tokalign.runtime.rounds import Context
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


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
