"""The drafter that looks up in a dictionary."""

from __future__ import annotations

from small_tables import table_of

from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.rounds import Context, Proposal
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


TABLE = table_of({ids(1): (ids(2, 3), 0.5), ids(9, 1): (ids(4, 5, 6), 0.75)}, vocabulary_size=100)


def test_a_dictionary_proposes_what_follows_the_longest_match() -> None:
    drafter = DictionaryDrafter(TABLE)
    assert drafter.propose(Context(ids(7, 1)), 9).tree.ids == (2, 3)
    assert drafter.propose(Context(ids(9, 1)), 9).tree.ids == (4, 5, 6)
    assert drafter.propose(Context(ids(9, 1)), 2).tree.ids == (4, 5)
    assert DictionaryDrafter(TABLE, max_tokens=1).propose(Context(ids(1)), 9).tree.ids == (2,)
    assert drafter.propose(Context(ids(1, 9)), 9) == Proposal()
    assert drafter.propose(Context(ids()), 9) == Proposal()
