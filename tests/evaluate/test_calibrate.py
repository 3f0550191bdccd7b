"""Measuring a cost curve: what is timed and how long it goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from random_drafters import random_drafter
from random_models import random_model
from ticking import ticking

from tokalign.evaluate import calibrate, timed_passes
from tokalign.evaluate.calibrate import (
    CONTEXT,
    curve_of,
    measure_briefly,
    measure_curve,
    time_passes,
)
from tokalign.evaluate.timed_passes import Pass, TimedPasses
from tokalign.runtime.cost import CostCurve
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.translation.growth import WIDTH
from tokalign.tokenizer.vocabulary import DraftId


class Clocked:
    """Passes that take a second each, on a clock of seconds."""

    def __init__(self, *passes: Pass) -> None:
        self.now = 0.0
        self.passes = dict.fromkeys(passes, self.take)

    def clock(self) -> float:
        return self.now

    def take(self) -> float:
        self.now += 1.0
        return 1.0


@pytest.mark.parametrize(
    ("budget", "counts", "least"),
    [
        (18.0, {1, 2, 4}, 4),
        (4.5, {1, 2, 4}, 1),  # the warm-up is all there is
        (3.5, {1, 2}, 1),  # a third one might take two seconds
        (-1.0, {1, 2}, 1),  # reading the prompt has taken all the time
        (1e9, {1, 2, 4}, 15),
    ],
)
def test_measuring_ends_in_time_with_what_it_has(
    budget: float, counts: set[int], least: int
) -> None:
    """A repetition takes three seconds, and the first one is a warm-up."""
    clocked, shares = Clocked(1, 2, 4), list[float]()
    times = time_passes(clocked.passes, budget, shares.append, clocked.clock)
    assert times.keys() == counts
    assert min(map(len, times.values())) == least
    assert clocked.now <= max(budget, 2.0)
    assert 0 <= sum(shares) <= 1


def test_what_tells_less_is_left_out_where_it_would_keep_the_rest_from_being_repeated() -> None:
    clocked = Clocked(*range(1, 15))
    for budget, counts, least in ((20.0, 9, 1), (40.0, 11, 2), (100.0, 14, 6)):
        clocked.now = 0.0
        times = time_passes(clocked.passes, budget, lambda _: None, clocked.clock)
        assert [*times] == [*range(1, 1 + counts)]
        assert min(map(len, times.values())) >= least


def test_one_row_is_repeated_first_as_nothing_is_known_without_it() -> None:
    clocked = Clocked(1, 2, 4, 8, 16, 33, "draft", "tree", "ahead")
    times = time_passes(clocked.passes, 20.5, lambda _: None, clocked.clock)
    assert {what: len(seconds) for what, seconds in times.items() if len(seconds) > 1} == {1: 2}


def test_more_rows_take_less_only_where_that_was_seen_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    once = {1: [1.0, 1.1], 2: [1.4, 1.6], 4: [1.1, 1.1], 8: [2.0, 2.0]}
    seldom = curve_of(None, None, 128, dict[Pass, list[float]](once)).rows
    assert seldom[2] == seldom[4]
    assert seldom[4].median == pytest.approx(1.25)
    assert seldom[1].median == pytest.approx(1.05)
    assert seldom[8].median == 2.0
    often = {count: seconds * 5 for count, seconds in once.items()}
    steps = curve_of(None, None, 128, dict[Pass, list[float]](often)).rows
    assert [steps[count].median for count in (2, 4)] == pytest.approx([1.5, 1.1])


def test_time_may_end_amid_the_passes_of_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a further step of its search takes is not known then, and all else is."""
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    clocked = Clocked(1, 2, "draft", "tree")
    times = time_passes(clocked.passes, 4.0, lambda _: None, clocked.clock)
    curve = curve_of(None, None, 128, times)
    assert curve.draft_pass is not None
    assert curve.tree_pass is None


class SlowPasses:
    """A clock that only passes move.

    seconds: that a pass takes, by the positions that are new in its context and its rows.
    """

    def __init__(self, patch: pytest.MonkeyPatch, seconds: Callable[[int, int], float]) -> None:
        self.now, self._most, self._seconds = 0.0, 0, seconds
        for module in (calibrate, timed_passes):
            patch.setattr(module, "perf_counter", lambda: self.now)
        verify = TimedPasses.verify

        def slowly(passes: TimedPasses, rows: int) -> float:
            before = self.now
            verify(passes, rows)
            self.now += self._seconds(max(0, passes.length - self._most), rows)
            self._most = max(self._most, passes.length)
            return self.now - before

        patch.setattr(TimedPasses, "verify", slowly)


def test_a_curve_is_measured_in_its_budget_where_passes_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what is most telling is timed."""
    slow = SlowPasses(monkeypatch, lambda _new, _rows: 0.05)
    curve = measure_curve(a_long_model(), budget=2.0)
    assert slow.now <= 2.05
    assert {1, 2, 4, 8, 16, 33} <= curve.rows.keys()
    assert len(curve.row_times) == 33


def test_a_first_impression_is_had_in_time_where_every_row_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As without a fast BLAS: reading costs as much as writing, so the context is cut short."""
    slow = SlowPasses(monkeypatch, lambda new, rows: 0.02 * max(1, new + rows - 1))
    curve = measure_briefly(a_long_model(), budget=0.8)
    assert slow.now < 1.2, "reading 128 ids would take 2.6"
    assert curve.context < 32
    assert {1, 2, 4} <= curve.rows.keys()


def a_long_model() -> Any:
    """A random model that can hold the context."""
    model = random_model(5, vocabulary=64)
    model.args.max_position_embeddings = 2 * CONTEXT
    return model


def test_measured_passes_form_a_chain() -> None:
    """Each pass reads the id that the last one chose, at the same depth."""
    passes = TimedPasses(a_long_model(), None, 16)
    verifier, seen = passes._verifier, []
    original = verifier.verify

    def verify(context: Any, proposal: Any) -> Any:
        verdict = original(context, proposal)
        seen.append((list(context.ids), len(proposal.tree), verdict))
        return verdict

    verifier.verify = verify  # type: ignore[method-assign]
    for rows in (1, 3, 8, 1):
        assert passes.verify(rows) > 0
    assert [(len(ids), proposed) for ids, proposed, _ in seen] == [(16, n) for n in (0, 2, 7, 0)]
    for (_, _, verdict), (ids, _, _) in pairwise(seen):
        assert ids[-1] == verdict.ids[-1]
    assert len({ids[-1] for ids, _, _ in seen}) > 1
    assert [verdict.rows for _, _, verdict in seen][1:] == [3, 8, 1]


def test_a_grown_tree_reads_as_many_texts_at_once_as_in_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = TimedPasses(random_model(5, vocabulary=64), random_model(6, vocabulary=64), 16)
    session, sizes = passes._draft, []
    assert session is not None
    original = session.branch

    def branch(ids: Any, tree: Any, computed: int | None, *args: Any) -> Any:
        sizes.append((len(tree), computed))
        return original(ids, tree, computed, *args)

    monkeypatch.setattr(session, "branch", branch)
    assert passes.passes([1])["tree"]() > 0
    assert sizes == [(0, None), (WIDTH, 0)]  # the text has been read before


@pytest.mark.parametrize("count", [0, 20])
def test_a_draft_pass_is_timed_over_frequent_ids(count: int) -> None:
    """A dictionary without entries knows none; then the whole head is timed."""
    frequent = np.arange(count, dtype=np.uint32) * 3
    models = random_model(5, vocabulary=64), random_model(6, vocabulary=64)
    passes = TimedPasses(*models, 16, frequent)
    timed, session = passes.passes([1]), passes._draft
    assert session is not None
    for _ in range(20):  # ids that are rare would have the whole head read on
        assert timed["tree"]() > 0
        assert timed["draft"]() > 0
    ids = session.held or [DraftId(0)]
    assert bool(count) == bool(mx.isinf(session.logits(ids)).any())


def test_a_drafter_is_timed_over_frequent_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sessions = random_model(5, vocabulary=64), list[Any]()

    def noted(session: Any, **how: Any) -> Any:
        sessions.append(session)
        return with_trained(session, **how)

    monkeypatch.setattr("tokalign.evaluate.timed_passes.with_trained", noted)
    for ids in (np.arange(20, dtype=np.uint32) * 3, np.arange(0, dtype=np.uint32), None):
        assert TimedPasses(model, random_drafter(model), 16, ids).search(1) > 0
    few, none, whole = sessions
    assert len(few.head.columns) < 64  # None where the context has many others
    assert none.head is None
    assert whole.head is None


def test_a_drafter_goes_on_from_the_pass_before() -> None:
    """Its searches are those of decoding: without the target's hidden state they would fail."""
    model = random_model(5, vocabulary=64)
    passes = TimedPasses(model, random_drafter(model), 16)
    timed = {what: seconds() for what, seconds in passes.passes([]).items()}
    assert timed.keys() == {"draft", "tree", "ahead"}
    assert timed["draft"] > 0
    assert TimedPasses(model, None, 16).passes([]).keys() == {"ahead"}


@pytest.mark.slow
def test_a_drafter_s_curve_has_the_first_step_of_its_search_and_a_further_one() -> None:
    model = random_model(5, vocabulary=64)
    drafter = random_drafter(model)
    with ticking():
        curve: CostCurve = measure_briefly(model, drafter)
    assert curve.machine == machine_of(model, drafter)
    assert curve.draft_pass is not None
    assert curve.tree_pass is not None
