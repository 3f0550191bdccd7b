"""The back-off table answers as a dict of the same entries does, but for one search in 256."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, floor, log, log1p
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tables import at_least, bundle_of_table, table_of

from tokalign.build.dictionary.backoff import number_predictions
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionaries

IDS = st.sampled_from([0, 1, 2, 255, 256, 65_535])
CONTEXTS = st.lists(IDS, min_size=1, max_size=8).map(tuple)
VOCABULARY = 1 << 16

# An answer of the dict it is compared with: the next id and its probability.
Stored = dict[tuple[int, ...], tuple[int, float]]
# The second and the third id of a context.
Ranked = Mapping[tuple[int, ...], list[int]]


@st.composite
def closed_tables(draw: st.DrawFn) -> Stored:
    """Contexts with all their suffixes."""
    contexts = draw(st.lists(CONTEXTS, max_size=30))
    ends = sorted({c[i:] for c in contexts for i in range(len(c))})
    levels = st.tuples(IDS, st.integers(1, 255).map(lambda p: p / 255))
    return {end: draw(levels) for end in ends}


def packed(
    stored: Stored, vocabulary_size: int = VOCABULARY, others: Ranked = MappingProxyType({})
) -> BackoffTable:
    entries = {context: ((token,), likely) for context, (token, likely) in stored.items()}
    return table_of(entries, vocabulary_size, 0.1, others=others)


def longest_in(stored: Stored, suffix: tuple[int, ...]) -> tuple[int, float] | None:
    ends = (suffix[i:] for i in range(len(suffix)))
    return next((stored[end] for end in ends if end in stored), None)


@given(closed_tables())
@pytest.mark.slow
def test_every_stored_context_gives_what_was_stored(stored: Stored) -> None:
    table = packed(stored)
    assert len(table) == len(stored)
    for context, (token, probability) in stored.items():
        found = table.predict(context)  # type: ignore[arg-type]
        assert found is not None
        assert found[0] == token
        # A probability is kept to a bin's width, which is largest in the middle.
        assert found[1] == pytest.approx(probability, abs=0.25)


def random_table(rng: np.random.Generator) -> tuple[Stored, BackoffTable]:
    contexts = [tuple(rng.integers(0, 50, n).tolist()) for n in rng.integers(1, 9, 3000)]
    ends = {c[i:] for c in contexts for i in range(len(c))}
    stored = {end: (int(rng.integers(0, 50)), float(rng.integers(1, 256)) / 255) for end in ends}
    return stored, packed(stored)


def test_a_search_differs_from_a_dict_at_most_as_often_as_fingerprints_collide() -> None:
    rng = np.random.default_rng(7)
    stored, table = random_table(rng)
    differ, asked = 0, 20_000
    for _ in range(asked):
        suffix = tuple(rng.integers(0, 50, 8).tolist())
        expected, found = longest_in(stored, suffix), table.predict(suffix)
        differ += (found and found[0]) != (expected and expected[0])
    assert differ / asked < 1.5 / 256


def test_a_chain_is_what_asking_again_gives() -> None:
    rng = np.random.default_rng(8)
    stored, table = random_table(rng)
    for context in list(stored)[:200]:
        for p_min in (0.001, 0.3):
            chain = at_least(table, p_min).follow(context, 6)  # type: ignore[arg-type]
            text, together = list(context), 1.0
            for token, probability in zip(chain.ids, chain.probabilities, strict=True):
                assert table.predict(text) == (token, probability)  # type: ignore[arg-type]
                text.append(token)
                together *= probability
            assert together >= p_min
            following = table.predict(text)  # type: ignore[arg-type]
            assert len(chain.ids) == 6 or following is None or together * following[1] < p_min


@given(st.lists(st.tuples(IDS, st.floats(0.01, 1)), min_size=1, max_size=50))
@pytest.mark.slow
def test_predictions_are_numbered_without_loss_of_ids(entries: list[tuple[int, float]]) -> None:
    ids = np.array([token for token, _ in entries])
    likely = np.array([p for _, p in entries], dtype=np.float32)
    numbers, predicted, quantized = number_predictions(ids, likely)
    assert (predicted[numbers] == ids).all()
    between = (likely > 0.05) & (likely < 0.98)
    odds, kept = (np.log(p / (1 - p)) for p in (likely[between], quantized[numbers][between] / 255))
    assert np.abs(odds - kept).max(initial=0) <= 1 + 0.15  # a bin's width, and 1/255 at p = 0.05


def test_probabilities_that_rounding_took_beyond_one_are_one() -> None:
    likely = np.array([0, 1, np.nextafter(np.float32(1), np.float32(2))], dtype=np.float32)
    numbers, predicted, quantized = number_predictions(np.array([3, 5, 5]), likely)
    assert predicted[numbers].tolist() == [3, 5, 5]
    assert quantized[numbers].tolist() == [0, 255, 255]


def test_bins_do_not_depend_on_how_a_processor_computes_logarithms() -> None:
    """With those of 32 bits, equal texts gave other tables where there is no AVX2."""
    edges = np.array([1 / (1 + exp(3.5 - place)) for place in range(1, 8)], dtype=np.float32)
    likely = (edges + np.outer(np.arange(-20, 21), np.spacing(edges))).astype(np.float32).ravel()
    bins = [floor(log(p) - log1p(-p) + 3.5) for p in map(float, likely)]
    numbers, *_ = number_predictions(np.zeros(len(likely), dtype=np.int64), likely)
    assert numbers.tolist() == bins


def test_more_predictions_than_numbers_keep_the_frequent_ones() -> None:
    ids = np.concatenate([np.arange(70_000), np.arange(60_000)])
    numbers, predicted, quantized = number_predictions(ids, np.full(len(ids), 0.5, np.float32))
    assert len(predicted) == 1 << 16
    frequent = slice(70_000, None)
    assert (predicted[numbers[frequent]] == ids[frequent]).all()
    wrong = predicted[numbers] != ids
    assert (quantized[numbers[wrong]] == 0).all()  # never proposed


def test_where_numbers_are_short_only_rare_ids_lose_their_bins() -> None:
    rare, frequent = np.arange(1000, 61_000), np.arange(100)
    ids = np.concatenate([np.repeat(rare, 2), np.tile(frequent, 500)])
    likely = np.concatenate(
        [np.tile([0.2, 0.6], len(rare)), np.repeat(np.linspace(0.05, 0.95, 500), len(frequent))]
    ).astype(np.float32)
    numbers, predicted, quantized = number_predictions(ids, likely)
    assert len(predicted) <= 1 << 16
    assert (predicted[numbers] == ids).all()
    off = np.abs(quantized[numbers] / 255 - likely)
    assert off[2 * len(rare) :].max() < 0.15
    assert off[: 2 * len(rare)].mean() < 0.21  # 0.2, were all of them joined


def test_ids_of_a_large_vocabulary_are_kept() -> None:
    stored: Stored = {(151_000,): (128_000, 1.0), (3,): (151_935, 1.0)}
    table = packed(stored, 151_936)
    assert table.predict([3]) == (151_935, 1.0)  # type: ignore[list-item]
    assert table.predict([3, 151_000]) == (128_000, 1.0)  # type: ignore[list-item]


def test_alternatives_come_in_their_order_and_change_no_chain() -> None:
    """Every third context has one alternative, and every ninth has two."""
    rng = np.random.default_rng(9)
    stored, plain = random_table(rng)
    others: dict[tuple[int, ...], list[int]] = {}
    for place, (context, (first, _)) in enumerate(stored.items()):
        ids = [(first + step) % 50 for step in (1, 2)][: (place % 3 == 0) + (place % 9 == 0)]
        if ids:
            others[context] = ids
    table, differ = packed(stored, others=others), 0
    assert len(table) == len(stored)
    for context, (first, _) in stored.items():
        found = [token for token, _ in table.expected(context)]  # type: ignore[arg-type]
        own = [first, *others.get(context, [])]
        differ += found[: len(own)] != own
    assert differ / len(stored) < 2.5 / 256
    asked: list[Any] = rng.integers(0, 50, (3_000, 8)).tolist()
    differ = sum(table.follow(one, 1).ids != plain.follow(one, 1).ids for one in asked)
    assert differ / len(asked) < 3 / 256  # other slots, so other contexts pass for stored


def answers_by_length(table: BackoffTable, context: Any) -> list[int]:
    """The answers of the longest stored suffix and of shorter ones, three of them at most."""
    found = [table.predict(context[begin:]) for begin in range(len(context))]
    return list(dict.fromkeys(answer[0] for answer in found if answer is not None))[:3]


def test_answers_of_shorter_contexts_come_last() -> None:
    stored, _ = random_table(np.random.default_rng(12))
    table, more = packed(stored), 0
    for context in stored:
        found = [token for token, _ in table.expected(context)]  # type: ignore[arg-type]
        assert found == answers_by_length(table, context)
        more += len(found) > 1
    assert more > len(stored) / 4


@given(closed_tables())
@pytest.mark.slow
def test_equal_entries_give_equal_bytes_and_sections_hold_the_table(stored: Stored) -> None:
    table = packed(stored)
    assert packed(dict(reversed(stored.items()))).to_sections() == table.to_sections()
    again = BackoffTable.from_bundle(bundle_of_table(table, VOCABULARY, "ab" * 32), VOCABULARY)
    assert again.to_sections() == table.to_sections()
    assert (len(again), again.parameters) == (len(table), table.parameters)


def test_an_empty_table_knows_nothing() -> None:
    table = packed({})
    assert table.predict([1, 2]) is None  # type: ignore[list-item]
    assert table.follow([1, 2], 8).ids == ()  # type: ignore[list-item]


def published(entries: Any) -> BackoffTable:
    return table_of(entries, 100)


def test_the_longest_match_answers_under_its_own_name() -> None:
    one = published({(1,): ((7,), 0.9)})
    other = published({(2, 1): ((8, 9), 0.5), (3,): ((4,), 0.4)})
    both = Dictionaries({"dictionary:a": one, "dictionary:b": other})
    answer = both.follow([2, 1], 5)  # type: ignore[list-item]
    assert (answer.ids, set(answer.sources)) == ((8, 9), {"dictionary:b"})
    answer = both.follow([5, 1], 5)  # type: ignore[list-item]
    assert (answer.ids, answer.sources) == ((7,), ("dictionary:a",))
    assert not both.follow([6], 5)  # type: ignore[list-item]


ENTRIES: Any = {(1,): ((2,), 0.5), (4, 1): ((3,), 0.5), (9, 4, 1): ((5,), 0.5)}


@given(st.lists(st.integers(0, 9), max_size=10))
def test_a_match_is_as_long_as_the_longest_stored_suffix(ids: Any) -> None:
    stored = [n for n in range(1, len(ids) + 1) if tuple(ids[-n:]) in ENTRIES]
    assert published(ENTRIES).match_length(ids) == max(stored, default=0)


def test_a_chain_goes_on_as_long_as_it_is_right_often_enough() -> None:
    table = at_least(published({(1,): ((2, 3), 1.0)}), 1.0)
    assert table.follow([1], 5).ids == (2, 3)  # type: ignore[list-item]
    assert table.follow([1], 1).ids == (2,)  # type: ignore[list-item]


def test_numbers_of_no_prediction_are_passed_over() -> None:
    """As of a key that was never added, whose fingerprint is right by chance."""
    whole = published({(1,): ((2,), 0.5), (3,): ((4,), 0.6)})
    slots, ids, probabilities = whole.arrays
    for count in range(len(ids)):
        table = BackoffTable(
            whole.parameters,
            entries=len(whole),
            fingerprints=slots.astype(np.uint8),
            numbers=(slots >> 8).astype(np.uint16),
            ids=ids[:count],
            probabilities=probabilities[:count],
        )
        for token in (1, 3):
            known = [found for found, _ in table.expected([token])]  # type: ignore[list-item]
            predicted = table.predict([token])  # type: ignore[list-item]
            assert known == ([] if predicted is None else [predicted[0]])
            assert set(known) <= {2, 4}
