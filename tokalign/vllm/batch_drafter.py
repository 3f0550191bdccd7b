"""Drafting for a batch of requests: dictionaries and copies of the context, mixed as in the hybrid.

Every request gets a chain of ids, because vLLM verifies no trees. At each position the sources of
all requests are asked, what they say is mixed by the weights of `runtime/draft/mixing.py`, and the
likeliest id is taken, as long as all ids of the chain together are probable enough. Where one
dictionary is the only source, the chain is that of `BackoffTable.follow`.
Nothing is kept from step to step, so nothing is learned about copies while a text is decoded.
This module knows nothing of vLLM; `proposer.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.runtime.draft.mixing import ALONE, weights_of
from tokalign.runtime.draft.trust import LEAST
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.batch_lookup import NO_ID, BatchLookup, Ids
from tokalign.vllm.batch_fit import ENDING, fitting
from tokalign.vllm.context_matches import ContextMatches, Rows

COPY = "copy"

P_MIN = 0.05
"""The least probability of a whole chain where there is no dictionary to say it."""

Floats = NDArray[np.float64]


class BatchDrafter:
    """Proposes a chain of ids for each of many requests.

    dictionaries: by the names of their sources. copies: whether contexts are copied from.
    max_tokens: the longest chain. p_min: the least probability of a whole chain; None for what the
    dictionaries say, the largest where they differ.
    Raises: UsageError if there is nothing to draft with.
    """

    def __init__(
        self,
        dictionaries: Mapping[str, BackoffTable],
        *,
        copies: bool = True,
        max_tokens: int,
        p_min: float | None = None,
    ) -> None:
        if not dictionaries and not copies:
            raise UsageError("there is nothing to draft with; allow copies or give a dictionary")
        self._tables = [BatchLookup(table) for table in dictionaries.values()]
        self._copies, self._max_tokens = copies, max_tokens
        said = [table.parameters.p_min for table in dictionaries.values()]
        self._p_min = p_min if p_min is not None else max(said, default=P_MIN)
        self._mixture = _Mixture([*([COPY] if copies else []), *dictionaries])

    def propose(self, rows: Rows, lengths: Ids, limits: Ids) -> list[list[int]]:
        """The proposals of all requests, in their order.

        rows: i[requests, longest context], the ids of each request, which has `lengths` of them,
        i64[requests]. limits: i64[requests], the most ids to propose, 0 for a request to skip.
        Cost: see `benchmarks/vllm_proposer.py`.
        """
        lengths = np.where(limits > 0, lengths, 0)
        limits = np.minimum(limits, self._max_tokens)
        endings = _endings(rows, lengths)
        fits = self._fitting(endings, lengths)
        matches = ContextMatches(rows, lengths) if self._copies else None
        drafted = np.full((len(lengths), self._max_tokens), NO_ID)
        together = np.ones(len(lengths))
        alive = np.flatnonzero(lengths)
        for depth in range(self._max_tokens):
            ids, stated, odds = self._ask(endings[alive], fits[:, alive], matches, alive)
            chosen, probability = self._mixture.likeliest(ids, stated, odds)
            together[alive] *= probability
            taken = (chosen != NO_ID) & (together[alive] >= self._p_min) & (limits[alive] > depth)
            alive, chosen = alive[taken], chosen[taken]
            if not len(alive):
                break
            drafted[alive, depth] = chosen
            endings[alive, 1:] = endings[alive, :-1]
            endings[alive, 0] = chosen
            if matches is not None:
                matches.advance(drafted[:, depth])
        counts = (drafted != NO_ID).sum(axis=1)
        return [
            chain[:count] for chain, count in zip(drafted.tolist(), counts.tolist(), strict=True)
        ]

    def _fitting(self, endings: Ids, lengths: Ids) -> NDArray[np.bool_]:
        """Which dictionary is asked about which request, b[dictionaries, requests].

        A single one is asked about all: to find out costs more than to ask it.
        """
        if len(self._tables) < 2:
            return np.ones((len(self._tables), len(lengths)), dtype=np.bool_)
        return fitting(self._tables, endings, lengths)

    def _ask(
        self,
        endings: Ids,
        fits: NDArray[np.bool_],
        matches: ContextMatches | None,
        alive: NDArray[np.int64],
    ) -> tuple[Ids, Floats, Floats]:
        """What all sources expect: ids, probabilities and log-odds, [requests, columns]."""
        columns: list[tuple[Ids, Floats, Floats]] = []
        if matches is not None:
            copied = matches.expected()
            for column in range(copied.ids.shape[1]):
                odds = copied.log_odds[alive, column]
                columns.append((copied.ids[alive, column], 1 / (1 + np.exp(-odds)), odds))
        for table, fit in zip(self._tables, fits, strict=True):
            found = table.predict(endings)
            asked = np.where(fit, found.ids, NO_ID)
            columns.append((asked, found.probabilities, found.log_odds))
        ids, stated, odds = zip(*columns, strict=True)
        return np.stack(ids, axis=1), np.stack(stated, axis=1), np.stack(odds, axis=1)


class _Mixture:
    """The mixture of `Mixer` before it has learned anything, for many requests at once.

    sources: by name. A source has one column of ids, the copies have two.
    """

    def __init__(self, sources: list[str]) -> None:
        alone = len(sources) == 1
        self._exact = alone and sources != [COPY]
        weights = [ALONE if alone else weights_of(name) for name in sources]
        widths = [2 if name == COPY else 1 for name in sources]
        self._odds = np.repeat([one.odds for one in weights], widths)
        self._lifts = np.repeat([one.named - one.silent for one in weights], widths)
        self._silent = np.array([one.silent for one in weights])
        self._begins = np.r_[0, np.cumsum(widths)[:-1]]

    def likeliest(self, ids: Ids, stated: Floats, log_odds: Floats) -> tuple[Ids, Floats]:
        """The likeliest id of each request and its probability; NO_ID and 0 where none is known.

        ids, stated, log_odds: [requests, columns]. Ties go to the first column.
        """
        known = ids != NO_ID
        if self._exact:
            return ids[:, 0], np.where(known[:, 0], stated[:, 0], 0.0)
        votes = np.where(known, self._odds * log_odds + self._lifts, 0.0)
        alike = ids[:, :, None] == ids[:, None, :]
        totals = (alike * votes[:, None, :]).sum(axis=2)
        asked = np.logical_or.reduceat(known, self._begins, axis=1)
        totals += (asked * self._silent).sum(axis=1)[:, None]
        totals[~known] = -np.inf
        best = totals.argmax(axis=1)
        at = np.arange(len(ids)), best
        found = known[at]
        probability = 1 / (1 + np.exp(-np.where(found, totals[at], 0.0)))
        return ids[at], np.where(found, np.clip(probability, LEAST, 1 - LEAST), 0.0)


def _endings(rows: Rows, lengths: Ids) -> Ids:
    """i64[requests, ENDING]: the last ids of each request, the very last one first."""
    places = lengths[:, None] - 1 - np.arange(ENDING)
    inside = places >= 0
    found = rows[np.arange(len(lengths))[:, None], np.where(inside, places, 0)]
    return np.where(inside, found, NO_ID).astype(np.int64)
