"""Drafting from a static table: no model, no passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Proposal
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.tables.dictionary import Dictionary


class DictionaryDrafter:
    """Proposes what usually follows the longest suffix of the context that a table knows.

    It is both a drafter and a source of a hybrid (`sources.Source`).
    max_tokens: the longest proposal. p_min: the least probability that all of a proposal is right;
    None for the table's own.
    """

    def __init__(
        self, table: Dictionary, *, max_tokens: int = 8, p_min: float | None = None
    ) -> None:
        self._table = table
        self._max_tokens = max_tokens
        self._p_min = p_min
        self._tail: list[TargetId] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        return Proposal(tree=self._look_up(context.ids, min(limit, self._max_tokens)))

    def follow(self, ids: Sequence[TargetId]) -> None:
        """See `sources.Source`."""
        self._tail = list(ids[-MAX_CONTEXT:])

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> list[TokenTree]:
        """See `sources.Source`."""
        chain = self._look_up([*self._tail, *ahead], limit)
        return [chain] if chain else []

    def _look_up(self, ids: Sequence[TargetId], limit: int) -> TokenTree:
        return self._table.follow(ids[-MAX_CONTEXT:], limit, p_min=self._p_min)
