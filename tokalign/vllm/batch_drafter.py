"""Drafting for a batch of requests: from dictionaries, and from their own contexts.

Every request gets a chain of ids, because vLLM verifies no trees. At each position the surest
source says which id comes next, as long as all ids of the chain together are probable enough. Where
one dictionary is the only source, the chain is that of `BackoffTable.follow`. The hybrid of the MLX
runtime mixes its sources and learns how far to trust them. Here no text is kept from step to step,
so nothing can be learned from it, and the mixture without learning proposed more rows for the same
tokens.
This module knows nothing of vLLM; `proposer.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.tables.backoff import BackoffTable
from tokalign.vllm.batch_fit import BatchFit, Rows, last_ids
from tokalign.vllm.batch_lookup import NO_ID, BatchLookup, Ids
from tokalign.vllm.context_matches import ContextMatches

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
        self._fit = BatchFit(self._tables)
        self._copies, self._max_tokens = copies, max_tokens
        said = [table.parameters.p_min for table in dictionaries.values()]
        self._p_min = p_min if p_min is not None else max(said, default=P_MIN)

    def propose(self, rows: Rows, lengths: Ids, limits: Ids) -> list[list[int]]:
        """The proposals of all requests, in their order.

        rows: i[requests, longest context], the ids of each request, which has `lengths` of them,
        i64[requests]. limits: i64[requests], the most ids to propose, 0 for a request to skip.
        Cost: see `benchmarks/vllm_proposer.py`.
        """
        lengths = np.where(limits > 0, lengths, 0)
        limits = np.minimum(limits, self._max_tokens)
        endings = last_ids(rows, np.arange(len(lengths)), lengths)
        fits = self._fitting(rows, lengths)
        matches = ContextMatches(rows, lengths) if self._copies else None
        drafted = np.full((len(lengths), self._max_tokens), NO_ID)
        together = np.ones(len(lengths))
        alive = np.flatnonzero(lengths)
        for depth in range(self._max_tokens):
            chosen, probability = self._surest(endings[alive], fits[:, alive], matches, alive)
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

    def _fitting(self, rows: Rows, lengths: Ids) -> NDArray[np.bool_]:
        """Which dictionary is asked about which request, b[dictionaries, requests].

        A single one is asked about all: to find out costs more than to ask it.
        """
        if len(self._tables) < 2:
            return np.ones((len(self._tables), len(lengths)), dtype=np.bool_)
        return self._fit.follow(rows, lengths)

    def _surest(
        self,
        endings: Ids,
        fits: NDArray[np.bool_],
        matches: ContextMatches | None,
        alive: NDArray[np.int64],
    ) -> tuple[Ids, Floats]:
        """The id that the surest source expects of each request, and how probable it says that is.

        alive: the requests that are asked about, to which `endings` and `fits` belong. Returns:
        NO_ID and 0 where no source knows anything. Ties go to the first source, copies first.
        """
        ids, probabilities = np.full(len(alive), NO_ID), np.zeros(len(alive))
        said: list[tuple[Ids, Floats]] = []
        if matches is not None:
            copied = matches.expected()
            said += zip(copied.ids.T[:, alive], copied.probabilities.T[:, alive], strict=True)
        for table, fit in zip(self._tables, fits, strict=True):
            found = table.predict(endings)
            said.append((np.where(fit, found.ids, NO_ID), found.probabilities))
        for theirs, probability in said:
            surer = (theirs != NO_ID) & (probability > probabilities)
            ids = np.where(surer, theirs, ids)
            probabilities = np.where(surer, probability, probabilities)
        return ids, probabilities
