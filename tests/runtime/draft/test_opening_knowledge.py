"""What a curve says is what the controller begins with; only a measured one has seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_drafters import random_drafter
from random_models import random_model

from tokalign.runtime.cost import (
    PUBLISHED,
    CostCurve,
    Timing,
    published_curve,
    read_curve,
    store_curve,
)
from tokalign.runtime.draft.costs import BARE
from tokalign.runtime.draft.neural import DRAFT, DRAFTER
from tokalign.runtime.draft.opening_knowledge import knowledge_from, opening_knowledge
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.weights import vocabulary_size, weight_bytes


@pytest.fixture(autouse=True)
def no_stored_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds)


def pair() -> tuple[Any, Any]:
    return random_model(0), random_model(1, heads=2)


def measured_curve() -> CostCurve:
    """A curve of the two random models, in seconds."""
    rows = {1: timing(0.020), 2: timing(0.024), 3: timing(0.030)}
    return CostCurve(
        name="here",
        source="a test",
        context=128,
        rows=rows,
        draft_pass=timing(0.003),
        host=0.002,
        machine=machine_of(*pair()),
    )


def test_a_measured_curve_is_believed_to_the_second() -> None:
    known = knowledge_from([measured_curve()], *pair())
    assert known.costs.rows.is_calibrated
    assert known.costs.rows.table(3) == (0.020, 0.024, 0.030)
    assert known.costs.plain == pytest.approx(0.018)
    row = known.costs.rows(1)
    assert known.models[DRAFT].times(2, row) == pytest.approx([0.003, 0.006])


def test_the_first_pass_of_a_draft_reads_the_text_and_the_others_grow_a_tree() -> None:
    curve = measured_curve()
    grown = replace(curve, tree_pass=timing(0.005))
    known = knowledge_from([grown], *pair())
    row = known.costs.rows(1)
    assert known.models[DRAFT].times(3, row) == pytest.approx([0.003, 0.008, 0.013])


def test_of_an_assumed_curve_only_the_shape_is_taken() -> None:
    """Its draft passes are to the target's as the bytes of the weights, with as many rows."""
    target, draft = random_model(0), random_model(1, vocabulary=32)
    known = knowledge_from([replace(measured_curve(), machine=None)], target, draft)
    assert not known.costs.rows.is_calibrated
    assert known.costs.rows.reach == 3
    ratio = weight_bytes(draft) / weight_bytes(target)
    assert 0 < ratio < 1
    assert known.models[DRAFT].times(2, known.costs.rows(1)) == pytest.approx(
        [ratio * 0.020, ratio * (0.020 + 0.036)]
    )
    known.costs.ahead.observe(BARE, 1.0)
    known.costs.rows.observe(1, 1.0)
    assert known.costs.plain == pytest.approx(1.0)


def test_a_drafter_s_measured_searches_are_believed_and_go_on_as_they_rise() -> None:
    target = random_model(0)
    drafter = random_drafter(target)
    steps = {"draft_pass": timing(0.002), "tree_pass": timing(0.001)}
    curve = replace(measured_curve(), machine=machine_of(target, drafter), **steps)
    drafts = knowledge_from([curve], target, drafter).models[DRAFTER].drafts
    assert drafts is not None
    assert drafts.is_calibrated
    assert drafts.table(6) == pytest.approx((0.10, 0.15, 0.20, 0.25, 0.30, 0.35))


def test_a_drafter_that_was_not_timed_reads_the_target_s_head_at_every_step() -> None:
    target = random_model(0)
    drafter = random_drafter(target)
    known = knowledge_from([replace(measured_curve(), machine=None)], target, drafter)
    read = weight_bytes(drafter) + weight_bytes(target.lm_head)
    expected = read / weight_bytes(target) * known.costs.rows(1)
    assert known.models[DRAFTER].times(1, known.costs.rows(1))[0] == pytest.approx(expected)
    with_head = random_drafter(target, head="full")
    assert with_head.step_bytes == weight_bytes(with_head)


def test_rows_that_a_head_leaves_out_are_not_read() -> None:
    target, draft = random_model(0), random_model(1, heads=2)
    drafter, ids = random_drafter(target), np.arange(16, dtype=np.uint32)
    unread = {DRAFT: weight_bytes(draft.lm_head), DRAFTER: weight_bytes(target.lm_head)}
    curves = [replace(measured_curve(), machine=None)] * 2
    short, whole = (
        knowledge_from(curves, target, draft, drafter, heads=[given, given])
        for given in (ids, None)
    )
    for kind, head in unread.items():
        saved = whole.models[kind].times(1, 1.0)[0] - short.models[kind].times(1, 1.0)[0]
        left_out = 1 - len(ids) / vocabulary_size(target)
        assert saved == pytest.approx(left_out * head / weight_bytes(target))


def test_without_a_draft_model_nothing_is_known_of_one() -> None:
    known = knowledge_from([measured_curve()], random_model(0))
    assert not known.models


def test_a_stored_curve_comes_before_an_assumed_one() -> None:
    target, draft = random_model(0), random_model(1, heads=2)
    said: list[str] = []
    assert not opening_knowledge(target, draft, note=said.append).costs.rows.is_calibrated
    [line] = said
    assert read_curve("24-percent-per-row").name in line
    assert "tokalign calibrate" in line
    store_curve(measured_curve())
    assert opening_knowledge(target, draft, note=said.append).costs.rows(1) == 0.020
    assert len(said) == 1


@pytest.mark.parametrize("device", PUBLISHED)
def test_a_known_machine_begins_with_its_shipped_curve(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokalign.runtime.mlx.machine.device_name", lambda: device)
    said: list[str] = []
    known = opening_knowledge(random_model(0), note=said.append)
    name = published_curve(device, 32)
    assert name is not None
    curve = read_curve(name)
    assert known.costs.rows.table(8) == pytest.approx(curve.row_times[:8])
    assert device in said[0]
