"""Which dictionaries know the text at hand, by how often they expected what came.

A dictionary of another language than the text expects the right id after one position in a hundred,
one of the text's own language after every third. So a few dozen ids of the prompt tell them apart,
and a dictionary that does not fit is not asked. It is followed all the same, and asked again as
soon as the text changes over to what it knows. `lab/benchmarks/languages.py` measures what that
saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.tables.dictionary import MAX_CONTEXT, Dictionary
from tokalign.tokenizer.vocabulary import TargetId

PROMPT_END = 64
"""How many ids at the end of the prompt are looked at; older ones would hardly count."""

RATE = 1 / 16
"""Weight of the newest id in the share of ids that a dictionary expected."""

FIRST_SHARE = 0.2
"""The share assumed before any text: every dictionary is asked until the text speaks against it."""

LEAST_SHARE = 0.03
"""A dictionary with a smaller share is of no use to any text."""

LEAST_OF_BEST = 0.25
"""A dictionary with less than so much of the best one's share does not fit."""


class DictionaryFit:
    """Follows one text with several dictionaries, or with one, and says which of them fit.

    tables: by the names of their sources. Cost: one look-up of each dictionary per id, about 5 µs.
    """

    def __init__(self, tables: Mapping[str, Dictionary]) -> None:
        self._tables = dict(tables)
        self._shares = dict.fromkeys(self._tables, FIRST_SHARE)
        self._seen = 0

    def follow(self, ids: Sequence[TargetId]) -> dict[str, Dictionary]:
        """Read on in a text and return the dictionaries that fit it now.

        ids: all of the text; it only grows from call to call.
        """
        first = self._seen or len(ids) - PROMPT_END
        for place in range(max(1, first), len(ids)):
            self._compare(ids[max(0, place - MAX_CONTEXT) : place], ids[place])
        self._seen = len(ids)
        least = max(LEAST_SHARE, LEAST_OF_BEST * max(self._shares.values()))
        return {name: self._tables[name] for name, share in self._shares.items() if share >= least}

    def _compare(self, before: Sequence[TargetId], came: TargetId) -> None:
        for name, table in self._tables.items():
            expected = table.follow(before, 1).ids
            self._shares[name] += RATE * ((expected == (came,)) - self._shares[name])
