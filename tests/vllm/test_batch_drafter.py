"""A batch is drafted as the drafters of the MLX runtime draft for each request alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import pytest
from batches import Batch, make_batch, two_tables

from tokalign.errors import UsageError
from tokalign.runtime.context import Context
from tokalign.runtime.draft.context_copy import AGREED, FIRST, LATEST, ONLY, PRIORS
from tokalign.runtime.draft.dictionary_fit import DictionaryFit
from tokalign.runtime.draft.lookup import DictionaryDrafter, DictionarySource
from tokalign.runtime.draft.mixing import Mixer, Mixing
from tokalign.tables.batch_lookup import BatchLookup
from tokalign.vllm.batch_drafter import P_MIN, BatchDrafter, _endings
from tokalign.vllm.batch_fit import fitting
from tokalign.vllm.context_matches import LONGEST_MATCH

BATCH = make_batch(60)


def propose(drafter: BatchDrafter, batch: Batch, limit: int = 8) -> list[list[int]]:
    return drafter.propose(batch.rows, batch.lengths, np.full(len(batch.texts), limit))


class Place(NamedTuple):
    """After how many ids of the text its matches ended, and how long they are."""

    ends: tuple[int, ...]
    length: int


class PlainCopy:
    """Context copy by brute force, and with its priors as they are: the law in a few lines."""

    name = "copy"

    def __init__(self, text: Sequence[int]) -> None:
        self._text = list(text)

    def follow(self, ids: Sequence[int]) -> Place:
        text = self._text
        for length in range(min(LONGEST_MATCH, len(text)), 0, -1):
            ends = [e for e in range(length, len(text)) if text[e - length : e] == text[-length:]]
            if ends:
                return Place(tuple(ends), length)
        return Place((), 0)

    def advance(self, state: Place, token: int) -> Place:
        ends = [e + 1 for e in state.ends if e < len(self._text) and self._text[e] == token]
        return Place(tuple(ends), min(state.length + 1, LONGEST_MATCH))

    def expect(self, state: Place) -> Iterable[tuple[int, float]]:
        if not state.ends:
            return []
        first, latest = state.ends[0], state.ends[-1]
        following = [self._text[e] if e < len(self._text) else None for e in (latest, first)]
        alike = following[0] == following[1]
        kind = ONLY if first == latest else AGREED if alike else LATEST
        found = [(following[0], kind)] + ([] if alike else [(following[1], FIRST)])
        return [(t, self._odds(k, state.length)) for t, k in found if t is not None]

    @staticmethod
    def _odds(kind: int, length: int) -> float:
        prior = PRIORS[kind][min(length, len(PRIORS[kind])) - 1]
        return log(prior / (1 - prior))


def by_mixer(text: list[int], sources: list[Any], limit: int) -> list[int]:
    """The hybrid's own mixer, asked at one place after the other for the likeliest id."""
    mixer = Mixer(Mixing(), sources)
    states = [source.follow(text) for source in sources]
    chain: list[int] = []
    together = 1.0
    while len(chain) < limit:
        candidates = mixer.candidates(states, 1e-9)
        if not candidates:
            break
        token, probability = max(candidates, key=lambda one: one[1])[:2]
        together *= probability
        if together < P_MIN:
            break
        chain.append(token)
        states = [
            None if state is None else source.advance(state, token)
            for source, state in zip(sources, states, strict=True)
        ]
    return chain


@pytest.mark.parametrize("p_min", [None, 0.1])
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_a_dictionary_alone_proposes_what_the_dictionary_method_does(
    limit: int, p_min: float | None
) -> None:
    table = two_tables()["dictionary:a"]
    drafter = BatchDrafter({"dictionary": table}, copies=False, max_tokens=8, p_min=p_min)
    alone = DictionaryDrafter(table, p_min=p_min)
    wanted = [list(alone.propose(Context(text), limit).tree.ids) for text in BATCH.texts]
    assert propose(drafter, BATCH, limit) == wanted
    assert sum(map(bool, wanted)) > (20 if p_min is None else 1)


def test_copies_alone_propose_what_occurred_before() -> None:
    found = propose(BatchDrafter({}, max_tokens=8), BATCH)
    assert found == [by_mixer(text, [PlainCopy(text)], 8) for text in BATCH.texts]
    assert max(map(len, found)) == 8


@pytest.mark.parametrize("seed", range(3))
def test_sources_are_mixed_as_in_the_hybrid(seed: int) -> None:
    batch, tables = make_batch(60, seed), two_tables()
    wanted = []
    for text in batch.texts:
        fit = DictionaryFit(tables)
        sources = [DictionarySource(name, table, fit) for name, table in tables.items()]
        wanted.append(by_mixer(text, [PlainCopy(text), *sources], 8))
    assert propose(BatchDrafter(tables, max_tokens=8), batch) == wanted


def test_the_same_dictionaries_fit() -> None:
    tables = two_tables()
    endings = _endings(BATCH.rows, BATCH.lengths)
    found = fitting([BatchLookup(table) for table in tables.values()], endings, BATCH.lengths)
    for number, text in enumerate(BATCH.texts):
        fits = DictionaryFit(tables).follow(text)
        assert [name in fits for name in tables] == found[:, number].tolist()
    assert 0 < found.sum() < found.size


def test_requests_do_not_see_each_other() -> None:
    drafter = BatchDrafter(two_tables(), max_tokens=8)
    together = propose(drafter, BATCH)
    alone = [propose(drafter, Batch([text]))[0] for text in BATCH.texts]
    assert together == alone
    assert propose(drafter, Batch(BATCH.texts[::-1])) == together[::-1]


def test_limits_are_kept_request_by_request() -> None:
    drafter = BatchDrafter(two_tables(), max_tokens=6)
    limits = np.arange(len(BATCH.texts)) % 9
    found = drafter.propose(BATCH.rows, BATCH.lengths, limits)
    free = propose(drafter, BATCH)
    assert found == [one[:limit] for one, limit in zip(free, limits, strict=True)]
    assert max(map(len, free)) <= 6
    assert drafter.propose(BATCH.rows[:0], BATCH.lengths[:0], limits[:0]) == []


def test_nothing_to_draft_with_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to draft with"):
        BatchDrafter({}, copies=False, max_tokens=8)
