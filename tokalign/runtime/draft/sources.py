"""What a hybrid merges: sources that guess by looking up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Source(Protocol):
    """Guesses in microseconds, so that it can be asked in every round and more than once."""

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Read on in the committed text. `ids` is all of it; it only grows from call to call."""
        ...

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> Sequence[TokenTree]:
        """Chains that may follow the committed text and `ahead`, at most `limit` ids each.

        Their probabilities are calibrated as well as the source can.
        """
        ...
