"""Drafting from a static table: no model, no passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Guess, Proposal
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.tables.dictionary import Dictionary

SOURCE = "dictionary"


class DictionaryDrafter:
    """Proposes what usually follows the longest end of the context that a table knows.

    p_min: least probability of a whole proposal; None for the table's own.
    """

    def __init__(
        self, table: Dictionary, *, max_tokens: int = 8, p_min: float | None = None
    ) -> None:
        self._table = table
        self._max_tokens = max_tokens
        self._p_min = p_min

    def propose(self, context: Context, limit: int) -> Proposal:
        guess = self.guess(context.ids[-MAX_CONTEXT:], min(limit, self._max_tokens))
        if guess is None:
            return Proposal()
        return Proposal(
            ids=guess.ids,
            sources=(SOURCE,) * len(guess.ids),
            probabilities=guess.probabilities,
        )

    def guess(self, ids: Sequence[TargetId], limit: int) -> Guess | None:
        """How a text that ends in `ids` goes on, at most `limit` ids; None if nothing is known."""
        chain = self._table.follow(ids, limit, p_min=self._p_min)
        return Guess(chain.ids, chain.probabilities, SOURCE) if chain.ids else None
