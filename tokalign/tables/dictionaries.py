"""Several dictionaries of one tokenizer: of two languages, or a general one and one of a domain.

A hybrid takes each of them as a source of its own and learns which to trust. Everything else asks
them as one dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.tables.dictionary import Dictionary
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Dictionaries:
    """Dictionaries by the names of their sources; as one, the longest match answers.

    Between equally long matches the surer one answers. `benchmarks/languages.py` compares this rule
    with others.
    """

    def __init__(self, by_source: Mapping[str, Dictionary]) -> None:
        self.by_source = dict(by_source)

    def __len__(self) -> int:
        """The number of stored contexts of all dictionaries."""
        return sum(map(len, self.by_source.values()))

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """See `dictionary.Dictionary`: what the dictionary with the longest match expects."""
        found = [
            (table.match_length(suffix), expected)
            for table in self.by_source.values()
            if (expected := table.expected(suffix))
        ]
        return max(found, key=lambda one: (one[0], one[1][0][1]))[1] if found else ()

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        """See `dictionary.Dictionary`."""
        return max(table.match_length(suffix) for table in self.by_source.values())

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> TokenTree:
        """See `dictionary.Dictionary`. The ids have the source of the dictionary that answers."""
        best, best_rank = EMPTY_TREE, (0, 0.0)
        for source, table in self.by_source.items():
            answer = table.follow(suffix, limit, p_min=p_min)
            if answer:
                rank = table.match_length(suffix), answer.probabilities[0]
                if rank > best_rank:
                    best, best_rank = answer.guessed_by(source), rank
        return best
