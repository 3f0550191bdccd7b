"""What a dictionary offers: how a text is likely to continue, and several that answer as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SOURCE = "dictionary"
"""The source of every id that a dictionary expects."""

MAX_CONTEXT = 8
"""The longest context that a dictionary uses, in ids."""

CODE, CHAT = "code", "chat"
"""What a dictionary of programs is called in the place of a language, and one of chat models'
answers, which is asked beside any other."""

LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,64}")

HOW_TO_BUILD = "tokalign build --dictionary-only --target TARGET --language CODE FILE"

Ids = tuple[TargetId, ...]


class Dictionary(Protocol):
    """A static table of one target tokenizer and language."""

    def __len__(self) -> int:
        """The number of stored contexts."""

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """Ids that may follow a text that ends in `suffix`, and the log-odds of each."""

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        """How many ids the longest stored context has in which `suffix` ends; 0 if none is."""

    def follow(self, suffix: Sequence[TargetId], limit: int) -> TokenTree[TargetId]:
        """The likely continuation of a text that ends in `suffix`: a chain of up to `limit` ids."""

    @property
    def known_ids(self) -> NDArray[np.uint32]:
        """The ids that it expects in some place, in their order."""


class Dictionaries:
    """One dictionary or several, by the names of their sources. The longest match answers, the
    surer one of equally long ones.

    tokens: the bytes of the target's ids, by which blocks of code are told from prose.
    """

    def __init__(self, by_source: Mapping[str, Dictionary], tokens: Sequence[bytes] = ()) -> None:
        self.by_source, self.tokens = dict(by_source), tokens

    @cached_property
    def known_ids(self) -> NDArray[np.uint32]:
        """See `Dictionary`."""
        import numpy as np

        return np.unique(np.concatenate([table.known_ids for table in self.by_source.values()]))

    def follow(self, suffix: Sequence[TargetId], limit: int) -> TokenTree[TargetId]:
        """See `Dictionary`. The ids have the source of the dictionary that answers."""
        best, best_rank = EMPTY_TREE, (0, 0.0)
        for source, table in self.by_source.items():
            answer = table.follow(suffix, limit)
            if answer:
                rank = table.match_length(suffix), answer.probabilities[0]
                if rank > best_rank:
                    best_rank = rank
                    best = replace(answer, sources=(source,) * len(answer))
        return best
