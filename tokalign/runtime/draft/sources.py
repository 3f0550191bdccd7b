"""What a hybrid joins: sources that guess by looking up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokalign.runtime.proposal import Guess
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tokenizer.vocabulary import TargetId


class Source(Protocol):
    """Guesses in microseconds, so it can be asked in every round and more than once."""

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Read on in the committed text: `ids` is all of it, and only ever grows."""
        ...

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> Sequence[Guess]:
        """How the text goes on behind `ahead`, if that comes next; at most `limit` ids each."""
        ...


class Table(Protocol):
    """What usually follows given ids, whatever the text; a dictionary."""

    def guess(self, ids: Sequence[TargetId], limit: int) -> Guess | None:
        """How `ids` goes on; None where nothing is known."""
        ...


class TableSource:
    """A table as a source: it looks at the last few ids."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._tail: list[TargetId] = []

    def follow(self, ids: Sequence[TargetId]) -> None:
        self._tail = list(ids[-MAX_CONTEXT:])

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> list[Guess]:
        guess = self._table.guess([*self._tail, *ahead], limit)
        return [] if guess is None else [guess]
