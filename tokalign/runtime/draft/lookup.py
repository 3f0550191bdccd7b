"""Drafting by looking up in static tables, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.dictionary import MAX_CONTEXT, SOURCE, Dictionaries, Dictionary, Ids
from tokalign.tokenizer.vocabulary import TargetId

PROMPT_END = 64
"""How many ids at the end of the prompt are looked at; older ones would hardly count."""

RATE = 1 / 32
"""Least weight of the newest id in the share of ids that a dictionary expected. A dictionary of
manuals expects one id of news in twelve, one of another language one in fifty: so many ids it takes
to tell them apart."""

FIRST_SHARE, FIRST_IDS = 0.2, 8
"""The share assumed before any text, and how many ids that counts as: every dictionary is asked
until the text speaks against it."""

LEAST_SHARE = 0.03
"""A dictionary with a smaller share is of no use to any text."""

LEAST_OF_BEST = 0.25
"""A dictionary with less than so much of the best one's share does not fit."""


class DictionaryFit:
    """Follows one text with several dictionaries, or with one, and says which of them fit.

    A dictionary of another language than the text expects the right id after one position in a
    hundred, one of the text's own after every third (`lab/benchmarks/languages.py`). One that does
    not fit is not asked, but followed, and asked again as soon as the text changes over to it.
    tables: by the names of their sources. Cost: one look-up of each dictionary per id, about 5 µs,
    unless a draft has asked for it.
    """

    def __init__(self, tables: Mapping[str, Dictionary]) -> None:
        self._tables = dict(tables)
        self._shares = dict.fromkeys(self._tables, FIRST_SHARE)
        self._seen = self._compared = 0
        self._said: dict[tuple[str, Ids], Sequence[tuple[TargetId, float]]] = {}

    @property
    def shares(self) -> Mapping[str, float]:
        """How often each dictionary expected what came, lately."""
        return self._shares

    def follow(self, ids: Sequence[TargetId]) -> dict[str, Dictionary]:
        """Read on in a text and return the dictionaries that fit it now.

        ids: all of the text; it only grows from call to call.
        """
        first = self._seen or len(ids) - PROMPT_END
        for place in range(max(1, first), len(ids)):
            self._compare(tuple(ids[max(0, place - MAX_CONTEXT) : place]), ids[place])
        self._seen = len(ids)
        self._said.clear()
        least = max(LEAST_SHARE, LEAST_OF_BEST * max(self._shares.values()))
        return {name: self._tables[name] for name, share in self._shares.items() if share >= least}

    def expected(self, name: str, ending: Ids) -> Sequence[tuple[TargetId, float]]:
        """What a dictionary expects; kept until the text goes on, to be compared with it."""
        found = self._said[name, ending] = self._tables[name].expected(ending)
        return found

    def _compare(self, before: Ids, came: TargetId) -> None:
        self._compared += 1
        rate = max(RATE, 1 / (FIRST_IDS + self._compared))
        for name in self._tables:
            expected = self._said.get((name, before)) or self.expected(name, before)
            right = bool(expected) and expected[0][0] == came
            self._shares[name] += rate * (right - self._shares[name])


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
        ids, most = context.ids, min(limit, self._max_tokens)
        table, fit = self._table, self._fit
        if fit is not None:
            table = Dictionaries(fit.follow(ids), fit.shares)
        return Proposal(tree=table.follow(ids[-MAX_CONTEXT:], most, p_min=self._p_min))


class DictionarySource:
    """A dictionary as a source of a hybrid (`mixing.Source`). One object serves one request.

    fit: follows the text with all dictionaries; this one is asked only while it fits.
    """

    def __init__(self, name: str, fit: DictionaryFit) -> None:
        self.name, self._fit = name, fit

    def follow(self, ids: Sequence[TargetId]) -> Ids | None:
        fits = self.name in self._fit.follow(ids)
        return tuple(ids[-MAX_CONTEXT:]) if fits else None

    def advance(self, state: Ids, token: TargetId) -> Ids:
        return (*state[1 - MAX_CONTEXT :], token)

    def expect(self, state: Ids) -> Sequence[tuple[TargetId, float]]:
        expected = self._fit.expected(self.name, state)
        if len(expected) < 2:
            return expected
        return [expected[0], *[(token, odds - _LESS_SURE) for token, odds in expected[1:]]]


def dictionary_sources(table: Dictionary) -> list[DictionarySource]:
    """One dictionary or several as sources, so that trust in each is learned by its name."""
    tables = table.by_source if isinstance(table, Dictionaries) else {SOURCE: table}
    fit = DictionaryFit(tables)
    return [DictionarySource(name, fit) for name in tables]
