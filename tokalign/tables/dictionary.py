"""What every kind of dictionary offers: how a text is likely to continue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "dictionary"
"""The source of every id that a dictionary expects."""

MAX_CONTEXT = 8
"""The longest context that a dictionary uses, in ids."""

MAX_CONTINUATION = 8
"""The longest continuation that is asked for by default, in ids."""

LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a dictionary's language may be called: the name is in its header and in that of its file."""

HOW_TO_BUILD = "tokalign build --dictionary-only --target TARGET --language CODE --corpus FILE"
"""The command for messages that say what to do without a dictionary."""

Ids = tuple[TargetId, ...]


class Dictionary(Protocol):
    """A static table of one target tokenizer and language."""

    def __len__(self) -> int:
        """The number of stored contexts."""
        ...

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """Ids that may follow a text that ends in `suffix`, and the log-odds of each."""
        ...

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        """How many ids the longest stored context has in which `suffix` ends; 0 if none is."""
        ...

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> TokenTree:
        """The likely continuation of a text that ends in `suffix`, a chain; empty if unknown.

        suffix: only its last `MAX_CONTEXT` ids count. limit: the most ids to give.
        p_min: the least probability of all ids together; None for the table's own.
        """
        ...
