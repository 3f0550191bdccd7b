"""What every kind of dictionary offers: how a text is likely to continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tokalign.tokenizer.vocabulary import TargetId

MAX_CONTEXT = 8
"""The longest context that a dictionary uses, in ids."""

MAX_CONTINUATION = 8
"""The longest continuation that is asked for by default, in ids."""

Ids = tuple[TargetId, ...]


class Chain(NamedTuple):
    """Ids that are expected to follow, one after another.

    probabilities: of each id, given that those before it are right.
    """

    ids: Ids = ()
    probabilities: tuple[float, ...] = ()


class Dictionary(Protocol):
    """A static table of one target tokenizer and language."""

    def __len__(self) -> int:
        """The number of stored contexts."""
        ...

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> Chain:
        """The likely continuation of a text that ends in `suffix`; empty if the table knows none.

        suffix: only its last `MAX_CONTEXT` ids count. limit: the most ids to give.
        p_min: the least probability of all ids together; None for the table's own.
        """
        ...
