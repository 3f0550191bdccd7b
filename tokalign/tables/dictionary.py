"""What every dictionary offers, whichever kind of table it is: how a text is likely to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tokalign.tokenizer.vocabulary import TargetId

MAX_CONTEXT = 8
"""The longest context that any dictionary looks at, in ids."""

MAX_CONTINUATION = 8
"""The longest continuation that a dictionary is asked for by default, in ids."""

Ids = tuple[TargetId, ...]


class Chain(NamedTuple):
    """Ids expected to follow, each behind the one before it.

    probabilities: for each id, that it is right if those before it are.
    """

    ids: Ids = ()
    probabilities: tuple[float, ...] = ()


class Dictionary(Protocol):
    """A static table of one target tokenizer and language."""

    def __len__(self) -> int:
        """How many contexts are stored."""
        ...

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> Chain:
        """What is likely to follow a text that ends in `suffix`; empty where nothing is.

        suffix: only its last `MAX_CONTEXT` ids count. limit: most ids to give.
        p_min: least probability of all ids together; None for the table's own.
        """
        ...
