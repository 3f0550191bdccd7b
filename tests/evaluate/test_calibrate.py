"""Measuring a cost curve: what is timed, how long it goes on, and pauses in which a chip cools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any

import pytest
from random_drafters import random_drafter
from random_models import random_model

from tokalign.evaluate import calibrate
from tokalign.evaluate.calibrate import (
    _SEARCHES,
    CONTEXTS,
    CONTROL_ROWS,
    _affordable_contexts,
    _curve,
    _drift,
    _repeat,
    conditional_acceptance,
    measure_briefly,
    measure_curve,
    speedup_at,
)
from tokalign.evaluate.timed_passes import TimedPasses
from tokalign.runtime.cost import CostCurve
from tokalign.runtime.draft.learned_costs import Costs
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.weights import machine_of
from tokalign.runtime.rounds import Round
from tokalign.runtime.translation.growth import WIDTH
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class Clocked:
    """Passes and searches that take a second each, on a clock of seconds."""

    length = 128

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def verify(self, rows: int) -> float:
        self.now += 1.0
        return 1.0

    def steps(self, rows: Iterable[int], searches: Iterable[BeamShape]) -> dict[Any, Any]:
        return {what: partial(self.verify, what) for what in (*rows, *searches)}


@pytest.mark.parametrize(
    ("budget", "limit", "times"),
    [
        (5.0, 100.0, {1: 3, 2: 3, 4: 3}),  # three repetitions after the warm-up
        (18.0, 100.0, {1: 5, 2: 5, 4: 5}),
        (5.0, 4.5, {1: 1, 2: 1, 4: 1}),  # the warm-up is all there is
        (5.0, 3.5, {1: 1, 2: 1}),  # a third one might take two seconds
        (5.0, 1.0, {1: 1, 2: 1}),
        (5.0, -1.0, {1: 1, 2: 1}),  # reading the prompt has taken all the time
        (1e9, 1e9, {1: 15, 2: 15, 4: 15}),
    ],
)
def test_measuring_ends_in_time_with_what_it_has(
    budget: float, limit: float, times: dict[int, int]
) -> None:
    """A repetition takes three seconds, and the first one is a warm-up."""
    clocked: Any = Clocked()
    shares: list[float] = []
    limits: Any = {"budget": budget, "limit": limit, "clock": clocked.clock}
    found = _repeat([clocked], [1, 2, 4], (), shares.append, **limits)
    assert {count: len(seconds) for count, seconds in found[clocked].items()} == times
    assert clocked.now <= max(limit, 2.0)
    assert 0 <= sum(shares) <= 1


def test_time_may_end_amid_the_searches_of_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step of the usual search takes is not known then, and all else is."""
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    clocked: Any = Clocked()
    times = _repeat([clocked], [1, 2], _SEARCHES, budget=4.0, limit=4.0, clock=clocked.clock)
    curve = _curve(None, None, times)
    assert (curve.searches.keys(), curve.contexts[0].draft_pass) == ({1}, None)


def test_a_curve_is_measured_in_its_budget_where_passes_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the longer contexts would take all the time; only what is most telling is timed."""
    original = TimedPasses.verify

    def slowly(self: TimedPasses, rows: int) -> float:
        sleep(0.05)
        return original(self, rows) + 0.05

    monkeypatch.setattr(TimedPasses, "verify", slowly)
    model, began = a_long_model(), perf_counter()
    curve = measure_curve(model, budget=2.0)
    assert perf_counter() - began < 4.0
    assert {1, 2, 4, 8, 16, 33} <= curve.contexts[0].rows.keys()
    assert len(curve.rows_at(0)) == 33


def test_a_first_impression_is_had_in_time_where_every_row_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As without a fast BLAS: reading costs as much as writing, so the context is cut short."""
    original = TimedPasses.verify
    read: list[int] = []

    def slowly(self: TimedPasses, rows: int) -> float:
        new = max(0, self.length - max(read, default=0)) + rows - 1
        read.append(self.length)
        sleep(0.02 * max(1, new))
        return original(self, rows) + 0.02 * max(1, new)

    monkeypatch.setattr(TimedPasses, "verify", slowly)
    monkeypatch.setattr(calibrate, "_BRIEF_LIMIT", 0.8)
    model, began = a_long_model(), perf_counter()
    curve = measure_briefly(model)
    assert perf_counter() - began < 2.0, "reading 128 ids would take 2.6"
    assert curve.contexts[0].tokens < 32
    assert {1, 2, 4} <= curve.contexts[0].rows.keys()


def a_long_model() -> Any:
    """A random model that can hold every context."""
    model = random_model(5, vocabulary=64)
    model.args.max_position_embeddings = 2 * CONTEXTS[-1]
    return model


@pytest.mark.slow
def test_what_a_row_costs_is_measured_at_three_depths_if_the_budget_allows() -> None:
    model = a_long_model()
    for budget, lengths in ((1e6, CONTEXTS), (1e-9, (8,))):
        found = _affordable_contexts(model, None, CONTEXTS, budget)
        assert tuple(context.length for context in found) == lengths


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
        assert computed is not None
        sizes.append(len(tree) - computed)
        return original(ids, tree, computed, *args)

    monkeypatch.setattr(session, "branch", branch)
    assert passes.steps([1], ())["tree"]() > 0
    assert sizes == [WIDTH] * 3, "after the first of four passes"


def test_a_drafter_goes_on_from_the_pass_before_with_every_width_and_number_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its searches are those of decoding: they start from the state that chose the last id."""
    model = random_model(5, vocabulary=64)
    passes = TimedPasses(model, random_drafter(model), 16)
    session, asked = passes._drafter, []
    assert session is not None
    original = session.search

    def search(ids: Any, shape: BeamShape, **how: Any) -> Any:
        asked.append((len(ids), shape))
        return original(ids, shape, **how)

    monkeypatch.setattr(session, "search", search)
    timed = {
        shape: step() for shape, step in passes.steps([], _SEARCHES).items() if shape != "ahead"
    }
    assert asked == [(17, shape) for shape in _SEARCHES]
    # Without the target's hidden state there would have been no passes.
    assert session.passes == sum(shape.length for shape in _SEARCHES)
    assert set(timed) == set(_SEARCHES)
    assert min(timed.values()) > 0
    assert TimedPasses(model, None, 16).steps([], _SEARCHES).keys() == {"ahead"}


@pytest.mark.slow
def test_a_drafter_s_curve_has_its_searches_and_the_time_of_a_step() -> None:
    model = random_model(5, vocabulary=64)
    drafter = random_drafter(model)
    curve: CostCurve = measure_briefly(model, drafter)
    assert curve.machine == machine_of(model, drafter)
    timed = {(w, n) for w, by_steps in curve.searches.items() for n in by_steps}
    assert timed == {(4, 1), (4, 4)}, "of a first impression only those of decoding"
    assert curve.draft_pass_at(128) == pytest.approx(curve.searches[4][4].median / 4)


class HotPasses(Clocked):
    """Passes on a chip that each of them heats, and that every pause of a second cools by ten.

    heat: how much slower wide passes are for each one before. cools: whether pauses help.
    """

    def __init__(self, heat: float, *, cools: bool = True) -> None:
        super().__init__()
        self.passes, self.heat, self.cools, self.paused = 0, heat, cools, 0.0

    def verify(self, rows: int) -> float:
        self.passes += 1
        return 0.01 if rows == 1 else 0.037 * (1 + self.heat * self.passes)

    def sleep(self, seconds: float) -> None:
        self.paused += seconds
        if self.cools:
            self.passes = max(0, self.passes - round(10 * seconds))

    def measured(self, pauses: float) -> Any:
        this: Any = self
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(calibrate, "sleep", self.sleep)
            return _repeat(
                [this], (1, CONTROL_ROWS), budget=9, limit=9, pauses=pauses, clock=self.clock
            )

    def drift(self, pauses: float) -> float:
        return _drift(self.measured(pauses)[self][CONTROL_ROWS])


def test_a_chip_that_grows_hot_is_let_cool() -> None:
    hot, cooled = HotPasses(0.02), HotPasses(0.02)
    assert hot.drift(pauses=0.0) > 0.3
    assert cooled.drift(pauses=100.0) < 0.2
    assert 0 < cooled.paused < 20
    assert hot.paused == 0


def test_waiting_ends_where_it_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has come to stay: a second is lost, and the drift is told."""
    monkeypatch.setattr(calibrate, "machine_of", lambda *_: None)
    hot = HotPasses(0.02, cools=False)
    times = hot.measured(pauses=100.0)
    assert hot.paused == 1
    source, drift = _curve(None, None, times).source, _drift(times[hot][CONTROL_ROWS])
    assert f"those of {CONTROL_ROWS} rows drifted by {drift:+.0%}" in source
    assert "the times of one row differ by 0%" in source


def test_pauses_have_an_end_and_a_machine_that_does_not_throttle_needs_none() -> None:
    hot, cold = HotPasses(0.5), HotPasses(0.0)
    hot.measured(pauses=2.5)
    assert hot.paused == 2
    assert cold.drift(pauses=100.0) == pytest.approx(0)
    assert cold.paused == 0


COSTS = Costs(rows=(1.0, 1.25, 1.5, 1.75), draft_pass=0.125, host=0.0625)


def a_round(tree: TokenTree[Any], *path: int, passes: int) -> Round:
    emitted = (*(tree.ids[i] for i in path), TargetId(99))
    return Round(limit=8, tree=tree, path=path, emitted=emitted, draft_passes=passes)


def test_a_shorter_draft_is_worth_what_it_would_have_brought() -> None:
    """Two ids of three are right, found in three passes."""
    chain = TokenTree.chain([TargetId(i) for i in (1, 2, 3)], "draft")
    rounds = [a_round(chain, 0, 1, passes=3)] * 2
    assert speedup_at(rounds, COSTS, 3) == pytest.approx(3 / (1.75 + 0.0625 + 3 * 0.125))
    assert speedup_at(rounds, COSTS, 8) == speedup_at(rounds, COSTS, 3)
    assert speedup_at(rounds, COSTS, 2) == pytest.approx(3 / (1.5 + 0.0625 + 2 * 0.125))
    assert speedup_at(rounds, COSTS, 1) == pytest.approx(2 / (1.25 + 0.0625 + 0.125))
    assert conditional_acceptance(rounds, 8) == [1.0, 1.0, 0.0]


def test_alternatives_to_the_chain_stay_with_their_parent() -> None:
    """A chain of two, another id that might come first, and one that follows the chain."""
    tree = TokenTree(tuple(map(TargetId, (1, 2, 3, 4))), (-1, 0, -1, 1), ("draft",) * 4)
    costs = replace(COSTS, rows=(1.0, 1.25, 1.5, 1.75, 2.0), tree_pass=0.25)
    rounds = [a_round(tree, 2, passes=2), a_round(tree, 0, 1, 3, passes=2)]
    assert speedup_at(rounds, costs, 2) == pytest.approx(6 / (2 * (2.0 + 0.0625 + 2 * 0.25)))
    assert speedup_at(rounds, costs, 1) == pytest.approx(4 / (2 * (1.5 + 0.0625 + 0.25)))
