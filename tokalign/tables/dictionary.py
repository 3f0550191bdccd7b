"""What every dictionary offers, whichever kind of table it is: how a text is likely to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "dictionary"
"""The source of every id that a dictionary expects."""

MAX_CONTEXT = 8
"""The longest context that any dictionary looks at, in ids."""

MAX_CONTINUATION = 8
"""The longest continuation that a dictionary is asked for by default, in ids."""

Ids = tuple[TargetId, ...]


class Dictionary(Protocol):
    """A static table of one target tokenizer and language."""

    def __len__(self) -> int:
        """How many contexts are stored."""
        ...

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> TokenTree:
        """The chain likely to follow a text that ends in `suffix`; empty where none is.

        suffix: only its last `MAX_CONTEXT` ids count. limit: most ids to give.
        p_min: least probability of all ids together; None for the table's own.
        """
        ...
