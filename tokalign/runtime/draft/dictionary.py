"""Drafting from a static continuation table: no model, no passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Proposal

if TYPE_CHECKING:
    from tokalign.tables import Continuations

SOURCE = "dictionary"

LONGEST_KEY = 8
"""No table holds longer keys: more of the context need not be looked at."""


class DictionaryDrafter:
    """Proposes what usually follows the longest end of the context that the table knows."""

    def __init__(self, table: Continuations, *, max_tokens: int = 8) -> None:
        self._table = table
        self._max_tokens = max_tokens

    def propose(self, context: Context, limit: int) -> Proposal:
        found = self._table.longest_match(context.ids[-LONGEST_KEY:])
        if found is None:
            return Proposal()
        ids = found.ids[: min(self._max_tokens, limit)]
        return Proposal(ids=ids, sources=(SOURCE,) * len(ids))
