"""What a table would be worth in text that was not counted, against brute force and such text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.build.dictionary.test_backoff_pruning import (
    MAX_ORDER,
    as_orders,
    candidates_of,
    counted,
    rows_of,
)
from tokalign.build.dictionary import backoff
from tokalign.build.dictionary.backoff import make_table, measure_optimism
from tokalign.build.dictionary.ngram_tree import CONCENTRATION, DISCOUNT, grow_tree, smooth
from tokalign.build.dictionary.optimism import USUAL, leave_one_out
from tokalign.tokenizer.vocabulary import TargetId

END = 9  # of every line, and nowhere else, so that what comes after a context is always known
lines = st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=12), min_size=2, max_size=8)


@example([[0, 0, 1], [0, 0, 1, 0, 1], [0, 1, 0, 1]], 8)
@given(lines, st.integers(1, 40))
def test_answers_are_those_that_are_left_when_each_occurrence_is_taken_away(
    text: list[list[int]], room: int
) -> None:
    text = [[*line, END] for line in text]
    levels = grow_tree(as_orders(counted(text)))
    rows = [rows_of(levels, order) for order in range(1, len(levels) + 1)]
    at = {row: i for some in rows for i, row in enumerate(some)}
    candidates = candidates_of(levels, 0.05)
    smoothed, weights = smooth(levels)
    stored = [np.zeros(len(level), dtype=bool) for level in levels[:-1]]
    for some in candidates.best(room):
        stored[some.length - 1][some.nodes] = True

    def claim(context: tuple[int, ...], token: int, less: int) -> float:
        """p(token | context) where both were counted `less` and 1 times less."""
        length, ngram = len(context), (*context, token)
        total = levels[length - 1].counts[at[context]] + CONCENTRATION
        count = levels[length].counts[at[ngram]] - less
        given = weights[length - 1][at[context]] * total * smoothed[length - 1][at[ngram[1:]]]
        return float((max(count - DISCOUNT, 0) + given) / (total - 1))

    least = min(level.counts.min() for level in levels)
    expected: dict[int, list[tuple[float, bool]]] = {n: [] for n in range(1, len(levels))}
    for line in text:
        for place in range(1, len(line)):
            for length in range(min(place, MAX_ORDER - 1), 0, -1):
                context = tuple(line[place - length : place])
                if not stored[length - 1][at[context]]:
                    continue
                best, second = (
                    (int(rank[length - 1].ids[at[context]]), rank[length - 1].probabilities)
                    for rank in candidates.predictions[:2]
                )
                others = bool(second[1][at[context]])
                counts = levels[length].counts
                if line[place] != best[0]:
                    expected[length].append((claim(context, best[0], 0), False))
                    break
                left = counts[at[(*context, best[0])]] - 1 >= least
                if not left and not others:
                    continue
                itself = claim(context, best[0], 1) if left else 0
                instead = claim(context, second[0], 0) if others else 0
                expected[length].append((max(itself, instead), itself >= instead))
                break
    found = leave_one_out(levels, (smoothed, weights), candidates.predictions, stored)
    for length, answers in enumerate(found, start=1):
        wanted = expected[length]
        assert answers.times.sum() == pytest.approx(len(wanted), abs=1e-6)
        assert answers.times[answers.right].sum() == pytest.approx(sum(ok for _, ok in wanted))
        claimed = sum(min(max(p, 0.001), 0.995) for p, _ in wanted)
        assert (answers.claimed * answers.times).sum() == pytest.approx(claimed, abs=1e-4)


@pytest.mark.parametrize("spread", [1.2, 2.0])
def test_a_table_says_how_often_it_is_right_in_text_that_was_not_counted(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    text = [rng.zipf(spread, 40).clip(0, 300).tolist() for _ in range(2400)]
    levels = grow_tree(as_orders(counted(text[:1200], 2)))

    def error() -> float:
        table, _ = make_table(levels, vocabulary_size=400, max_bytes=200_000)
        found = [
            (answer, line[end])
            for line in text[1200:]
            for end in range(1, len(line))
            if (answer := table.predict([TargetId(token) for token in line[:end]]))
        ]
        claimed = sum(p for (_, p), _ in found)
        return abs(claimed / sum(token == right for (token, _), right in found) - 1)

    learned = error()
    assert learned < 0.04
    usual = [USUAL] * (len(levels) - 1)
    monkeypatch.setattr(backoff, "measure_optimism", lambda *_, **__: usual)
    assert learned < error()


def test_without_evidence_a_table_is_as_optimistic_as_usual() -> None:
    few = grow_tree(as_orders(counted([[1, 2, 3]] * 2)))
    found = measure_optimism(few, smooth(few), 100)
    assert found == pytest.approx([USUAL] * (len(few) - 1), abs=0.1)
    assert measure_optimism(few[:1], smooth(few[:1]), 100) == []
