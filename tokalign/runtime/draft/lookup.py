"""Drafting by looking up in static tables, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.draft.dictionary_fit import DictionaryFit
from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.dictionary import MAX_CONTEXT, SOURCE, Dictionaries, Dictionary, Ids
from tokalign.tokenizer.vocabulary import TargetId

_LESS_SURE = 0.7
"""Subtracted from the log-odds of alternatives. The weights of the mixture (`mixing.py`) hold for
the best id of a context; they would make too much of the others. Fitted as those weights were."""


class DictionaryDrafter(Drafter):
    """Proposes what usually follows the longest suffix of the context that a table knows.

    table: one dictionary, or several, of which those are asked that fit the text. One object serves
    one request.
    max_tokens: the longest proposal. p_min: the least probability that all of a proposal is right;
    None for the table's own.
    """

    def __init__(
        self, table: Dictionary, *, max_tokens: int = 8, p_min: float | None = None
    ) -> None:
        self._table = table
        self._max_tokens = max_tokens
        self._p_min = p_min
        self._fit = DictionaryFit(table.by_source) if isinstance(table, Dictionaries) else None

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `rounds.Drafter`."""
        ids, most = context.ids, min(limit, self._max_tokens)
        table = self._table if self._fit is None else Dictionaries(self._fit.follow(ids))
        return Proposal(tree=table.follow(ids[-MAX_CONTEXT:], most, p_min=self._p_min))


class DictionarySource:
    """A dictionary as a source of a hybrid (`mixing.Source`). One object serves one request.

    fit: follows the text with all dictionaries; this one is asked only while it fits.
    """

    def __init__(self, name: str, table: Dictionary, fit: DictionaryFit) -> None:
        self.name = name
        self._table, self._fit = table, fit

    def follow(self, ids: Sequence[TargetId]) -> Ids | None:
        """See `mixing.Source`."""
        fits = self.name in self._fit.follow(ids)
        return tuple(ids[-MAX_CONTEXT:]) if fits else None

    def advance(self, state: Ids, token: TargetId) -> Ids:
        """See `mixing.Source`."""
        return (*state[1 - MAX_CONTEXT :], token)

    def expect(self, state: Ids) -> Sequence[tuple[TargetId, float]]:
        """See `mixing.Source`."""
        expected = self._table.expected(state)
        if len(expected) < 2:
            return expected
        return [expected[0], *[(token, odds - _LESS_SURE) for token, odds in expected[1:]]]


def dictionary_sources(table: Dictionary) -> list[DictionarySource]:
    """One dictionary or several as sources, so that trust in each is learned by its name."""
    tables = table.by_source if isinstance(table, Dictionaries) else {SOURCE: table}
    fit = DictionaryFit(tables)
    return [DictionarySource(name, one, fit) for name, one in tables.items()]
