"""From n-grams to entries: the trees, the probabilities and the choice, against brute force."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.counting.ngram_tree import (
    NgramLevel,
    grow_tree,
    in_other_text,
    smooth,
    walk_back,
)
from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.dictionary.backoff import entries_within, make_table
from tokalign.build.dictionary.pruning import (
    ContextCandidates,
    keep_above,
    occurrences,
    ranked_predictions,
)
from tokalign.tables.binary_fuse import FuseShape

MAX_ORDER = 4
lines = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=8)

Counts = list[Counter[tuple[int, ...]]]


def counted(text: list[list[int]], min_count: int = 1) -> Counts:
    counts: Counts = []
    for n in range(1, MAX_ORDER + 1):
        every = Counter(tuple(x[i : i + n]) for x in text for i in range(len(x) - n + 1))
        counts.append(Counter({k: c for k, c in every.items() if c >= min_count}))
    return counts


def as_orders(counts: Counts) -> list[TokenNgrams]:
    orders = []
    for n, table in enumerate(counts, start=1):
        rows = sorted(table)
        ids = np.array(rows, dtype=np.uint16).reshape(len(rows), n)
        orders.append(TokenNgrams(ids, np.array([table[row] for row in rows])))
    return orders


def rows_of(levels: list[NgramLevel], order: int) -> list[tuple[int, ...]]:
    """The n-grams of one order, spelled out by walking back."""
    columns = list(walk_back(levels, order, np.arange(len(levels[order - 1]))))
    return list(zip(*(column.tolist() for column in reversed(columns)), strict=True))


@given(lines, st.integers(1, 2))
def test_the_tree_holds_the_ngrams_and_links_prefixes_and_suffixes(
    text: list[list[int]], min_count: int
) -> None:
    counts = counted(text, min_count)
    levels = grow_tree(as_orders(counts))
    assert len(levels) == sum(1 for table in counts if table)
    for order, level in enumerate(levels, start=1):
        rows = rows_of(levels, order)
        assert dict(zip(rows, level.counts.tolist(), strict=True)) == dict(counts[order - 1])
        if order > 1:
            shorter = rows_of(levels, order - 1)
            assert [shorter[i] for i in level.prefix] == [row[:-1] for row in rows]
            assert [shorter[i] for i in level.suffix] == [row[1:] for row in rows]


@given(lines)
def test_what_a_context_gives_away_is_what_its_ngrams_lose(text: list[list[int]]) -> None:
    """Probabilities after a context add up to 1, except for ends of lines and unseen n-grams."""
    levels = grow_tree(as_orders(counted(text)))
    probabilities, weights = smooth(levels)
    assert probabilities[0].sum() == pytest.approx(1)
    for order in range(1, len(levels)):
        level, shorter = levels[order], levels[order - 1]
        total = np.bincount(level.prefix, probabilities[order], minlength=len(shorter))
        ended = 1 - np.bincount(level.prefix, level.counts, minlength=len(shorter)) / shorter.counts
        assert (total <= 1 + 1e-5).all()
        assert (weights[order - 1] <= 1).all()
        # The end of a line counts as one more id that may follow.
        never = weights[order - 1] * (
            1
            - np.bincount(
                level.prefix, probabilities[order - 1][level.suffix], minlength=len(shorter)
            )
        )
        assert total + never == pytest.approx(np.ones(len(shorter)), abs=1e-4 + ended.max())


def test_a_rare_context_is_less_sure_than_a_frequent_one() -> None:
    """The example of `ngram_tree.py`: three times out of three is not certain."""
    text = [[1, 2]] * 3 + [[4, 5]] * 300 + [[0]] * 27 + [[2]] * 30
    levels = grow_tree(as_orders(counted(text)))
    probabilities, _ = smooth(levels)
    likely = dict(zip(rows_of(levels, 2), probabilities[1].tolist(), strict=True))
    unigrams = dict(zip(rows_of(levels, 1), probabilities[0].tolist(), strict=True))
    assert likely[1, 2] == pytest.approx((3 - 0.9 + (0.9 + 0.5) * unigrams[2,]) / 3.5)
    assert likely[1, 2] < 0.65 < 0.99 < likely[4, 5]


trees = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(-20, 20)), min_size=1, max_size=9
)


@given(trees, st.integers(0, 10))
def test_no_closed_set_is_worth_more_than_the_one_kept(
    drawn: list[tuple[int, int, int]], price: int
) -> None:
    """Brute force over all sets that are closed under suffixes."""
    by_length: list[list[tuple[int, int]]] = [[], [], []]
    for length, parent, gain in drawn:
        while length and not by_length[length - 1]:
            length -= 1
        shorter = len(by_length[length - 1]) if length else 1
        by_length[length].append((parent % shorter, gain))
    used = [nodes for nodes in by_length if nodes]
    suffixes = [np.array([parent for parent, _ in nodes]) for nodes in used]
    gained = [np.array([gain for _, gain in nodes], dtype=np.float32) for nodes in used]

    every = [(length, i) for length, nodes in enumerate(used) for i in range(len(nodes))]

    def worth(chosen: set[tuple[int, int]]) -> float:
        return sum(float(gained[length][i]) - price for length, i in chosen)

    def closed(chosen: set[tuple[int, int]]) -> bool:
        return all(n == 0 or (n - 1, int(suffixes[n][i])) in chosen for n, i in chosen)

    best = max(
        worth(set(chosen))
        for size in range(len(every) + 1)
        for chosen in combinations(every, size)
        if closed(set(chosen))
    )
    masks = keep_above(suffixes, gained, price)
    kept = {(n, int(i)) for n, mask in enumerate(masks) for i in np.flatnonzero(mask)}
    assert closed(kept)
    assert worth(kept) == pytest.approx(best)


@given(lines, st.integers(0, 30))
def test_the_choice_keeps_to_its_number_and_is_closed(text: list[list[int]], room: int) -> None:
    levels = grow_tree(as_orders(counted(text * 3)))
    entries = ContextCandidates(levels, 0.1).best(room)
    assert sum(len(some.nodes) for some in entries) <= room
    kept = {some.length: some.nodes for some in entries if some.rank == 0}
    for length in range(2, len(kept) + 1):
        suffixes = levels[length - 1].suffix[kept[length]]
        assert np.isin(suffixes, kept[length - 1]).all()


@given(lines, st.integers(0, 60))
def test_alternatives_are_the_next_ids_by_rank_of_contexts_that_are_kept(
    text: list[list[int]], room: int
) -> None:
    levels = grow_tree(as_orders(counted(text * 3)))
    if len(levels) < 2:
        return
    smoothed, _ = smooth(levels)
    likely = [in_other_text(values) for values in smoothed]
    entries = ContextCandidates(levels, 0.05).best(room)
    assert sum(len(some.nodes) for some in entries) <= room
    first = {some.length: set(some.nodes.tolist()) for some in entries if some.rank == 0}
    above: dict[tuple[int, int], float] = {}
    for some in entries:
        for node, token, p in zip(some.nodes, some.ids, some.probabilities, strict=True):
            continued = levels[some.length]
            own = np.flatnonzero(continued.prefix == node)
            ranked = sorted(
                zip(-likely[some.length][own], continued.last[own].tolist(), strict=True)
            )
            if some.rank:
                assert node in first[some.length]
                assert p > 0.05
                assert p <= above[some.length, int(node)]
            if p > 0:
                assert ranked[some.rank] == (-p, token)
            above[some.length, int(node)] = p


@given(lines)
def test_occurrences_are_those_that_no_longer_kept_context_takes(text: list[list[int]]) -> None:
    """Brute force over the positions of the text, with every second context kept, and suffixes."""
    counts = counted(text)
    levels = grow_tree(as_orders(counts))
    rows = [rows_of(levels, order) for order in range(1, len(levels) + 1)]
    wanted = {row[at:] for some in rows for row in some[::2] for at in range(len(row))}
    kept = [np.array([row in wanted for row in some]) for some in rows]
    seen: Counter[tuple[int, ...]] = Counter()
    for line in text:
        for end in range(1, len(line) + 1):
            ends = (tuple(line[at:end]) for at in range(max(0, end - MAX_ORDER), end))
            longest = next((some for some in ends if some in wanted), None)
            if longest is not None:
                seen[longest] += 1
    found = occurrences([one.suffix for one in levels], [one.counts for one in levels], kept)
    for some, times in zip(rows, found, strict=True):
        assert {row: seen[row] for row in some} == dict(zip(some, times.tolist(), strict=True))


def test_a_context_that_predicts_what_its_suffix_predicts_is_not_stored() -> None:
    """2 comes after "3 1", as after "1"; 5 comes after "4 1"."""
    text = [[3, 1, 2]] * 500 + [[0, 1, 2]] * 500 + [[4, 1, 5]] * 200
    levels = grow_tree(as_orders(counted(text)))
    pairs = {rows_of(levels, 2)[node] for node in ContextCandidates(levels, 0.1).best(4)[1].nodes}
    assert (4, 1) in pairs
    assert (3, 1) not in pairs


@pytest.mark.parametrize("p_min", [0.0, 1e-300, 1.0])
def test_a_table_is_made_for_every_least_probability(p_min: float) -> None:
    levels = grow_tree(as_orders(counted([[1, 2, 3, 1, 2, 4]] * 9)))
    table = make_table(levels, vocabulary_size=10, max_bytes=1000, p_min=p_min)
    assert table.parameters.p_min == p_min
    assert (len(table) > 0) == (p_min < 1)


@pytest.mark.parametrize("max_bytes", [0, 1_000, 9_000, 5_000_000])
def test_a_table_never_takes_more_than_its_bytes(max_bytes: int) -> None:
    rng = np.random.default_rng(3)
    text = [rng.zipf(1.5, 40).clip(0, 300).tolist() for _ in range(1500)]
    levels = grow_tree(as_orders(counted(text, 2)))
    table = make_table(levels, vocabulary_size=400, max_bytes=max_bytes)
    taken = sum(map(len, table.to_sections().values()))
    assert taken <= max(max_bytes, 64)
    if 1_000 < max_bytes < 100_000:
        assert taken > max_bytes / 2


@pytest.mark.parametrize("max_bytes", [76, 204, 304, 404])
def test_more_entries_are_taken_only_if_their_predictions_fit(max_bytes: int) -> None:
    """With the text and the sizes at which the narrowest margin does not hold."""
    rng = np.random.default_rng(1)
    text = [rng.zipf(1.2, 40).clip(0, 3000).tolist() for _ in range(60)]
    levels = grow_tree(as_orders(counted(text)))
    table = make_table(levels, vocabulary_size=3001, max_bytes=max_bytes)
    assert max_bytes / 2 < sum(map(len, table.to_sections().values())) <= max_bytes


def test_so_many_entries_fit_and_one_more_does_not() -> None:
    def size(entries: int, predictions: int) -> int:
        slots = FuseShape.holding(entries, seed=0).slots
        return 3 * slots + 3 * min(entries, predictions)

    for max_bytes in range(60, 3000, 97):
        for predictions in (5, 1000):
            found = entries_within(max_bytes, id_width=2, predictions=predictions)
            assert size(found, predictions) <= max_bytes < size(found + 1, predictions)


def test_ties_go_to_the_lowest_id() -> None:
    levels = grow_tree(as_orders(counted([[0, 3], [0, 1], [0, 2]])))
    likely, _ = smooth(levels)
    ranks = ranked_predictions(levels, likely)
    assert [int(one[0].ids[0]) for one in ranks] == [1, 2, 3]


def test_only_what_follows_a_context_is_thought_too_sure() -> None:
    levels = grow_tree(as_orders(counted([[0, 1, 2, 3]] * 3 + [[0, 1, 2, 1], [0, 1, 3, 3]])))
    likely, _ = smooth(levels)
    for length, own in enumerate(ContextCandidates(levels, 0.01).predictions[0], start=1):
        best = np.zeros(len(levels[length - 1]), dtype=np.float32)
        np.maximum.at(best, levels[length].prefix, in_other_text(likely[length]))
        assert np.allclose(own.probabilities, best)
