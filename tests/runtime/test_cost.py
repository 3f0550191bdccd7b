"""Curves keep what they hold, know when they are stale, and are found again."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.errors import UsageError
from tokalign.runtime.cost import (
    ASSUMED_DRAFT,
    PUBLISHED,
    CostCurve,
    Machine,
    Timing,
    find_curve,
    published_curve,
    read_curve,
    shipped_names,
    store_curve,
)
from tokalign.runtime.draft.costs import Costs
from tokalign.storage import cache_folder

MACHINE = Machine(device="Apple M9", mlx="0.32.4", target="aa", draft="bb")


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds * 0.5, seconds * 2)


def a_curve(machine: Machine | None = MACHINE) -> CostCurve:
    return CostCurve(
        name="mine",
        source="measured",
        machine=machine,
        host=0.0003,
        context=100,
        rows={m: timing(0.01 * m) for m in (1, 2, 4)},
        draft_pass=timing(0.001),
    )


TIMES = st.floats(1e-6, 10).map(lambda t: round(t, 7)).map(timing)


@given(st.dictionaries(st.integers(2, 33), TIMES), TIMES, st.none() | TIMES)
def test_json_keeps_everything(
    rows: dict[int, Timing], plain: Timing, draft_pass: Timing | None
) -> None:
    curve = replace(
        a_curve(),
        rows={1: plain, **rows},
        draft_pass=draft_pass,
        tree_pass=plain,
    )
    saved = json.loads(json.dumps(curve.to_json()))
    again = CostCurve.from_json(saved, name="it")
    assert again.to_json() == curve.to_json()
    assert again.machine == MACHINE
    assert again.row_times[0] == pytest.approx(plain.median, abs=1e-7)


def test_rows_in_between_are_interpolated() -> None:
    curve = a_curve()
    assert curve.row_times == pytest.approx((0.01, 0.02, 0.03, 0.04))
    assert curve.without_draft().draft_pass is None


def test_a_timing_is_a_median_and_its_quartiles() -> None:
    assert Timing.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Timing(3.0, 2.0, 4.0)
    assert Timing.of([1.0]) == Timing(1.0, 1.0, 1.0)


def test_every_shipped_curve_is_read_and_says_where_it_comes_from() -> None:
    names = shipped_names()
    assert {name for by_bits in PUBLISHED.values() for name in by_bits.values()} <= set(names)
    for curve in map(read_curve, names):
        assert len(curve.source) > 40
        assert len(curve.row_times) >= 8


def test_a_device_has_the_curve_of_the_nearest_number_format() -> None:
    of_m4 = [published_curve("Apple M4 Pro", bits) for bits in (2, 4, 8, 16)]
    assert of_m4 == ["m4-pro", "m4-pro", "m4-pro-8-bit", "m4-pro-8-bit"]
    assert published_curve("Apple M1", 4) is None


def test_a_curve_without_draft_passes_can_assume_one() -> None:
    curve = read_curve("m4-pro")
    assert "more than 11% are accepted" in curve.expectation()
    assert "more than 21% are accepted" in curve.expectation(assumed_draft=ASSUMED_DRAFT)
    known = read_curve("m2-pro")  # one that knows the time of a draft pass
    assert known.expectation(assumed_draft=0.5) == known.expectation()


@pytest.mark.parametrize(
    ("two_rows", "told"),
    [(0.98, "pays if more than 0% are accepted"), (2.5, "drafting one token does not pay")],
)
def test_a_share_that_has_to_be_accepted_is_a_share(two_rows: float, told: str) -> None:
    """Noise can time two rows below one, and each row may cost more than a pass."""
    rows = {1: timing(1.0), 2: timing(two_rows)}
    curve = CostCurve(name="noisy", source="measured", rows=rows)
    assert curve.expectation().endswith(told)


def test_a_curve_of_single_rows_alone_expects_nothing() -> None:
    """As a slow machine leaves it when the time is up."""
    curve = CostCurve(name="slow", source="measured", rows={1: timing(2.0)})
    assert "give a larger --budget" in curve.expectation()


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [],
        {"format": "tokalign-cost-curve", "version": 1},
        {**a_curve().to_json(), "rows": []},
        {**a_curve().to_json(), "rows": {"2": 0.1}},
        {**a_curve().to_json(), "rows": {"1": 0.0}},
    ],
)
def test_what_is_no_curve_is_refused_in_one_line(broken: object) -> None:
    with pytest.raises(UsageError, match="not a cost curve") as found:
        CostCurve.from_json(broken, name="it.json")
    assert "\n" not in str(found.value)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_stored_curve_is_found_until_something_changes(store: Path) -> None:
    """For another draft model the part of the target is; a damaged file is measured again."""
    assert find_curve(MACHINE) is None
    path = store_curve(a_curve())
    assert [*(store / "curves").iterdir()] == [path]
    assert find_curve(MACHINE) == a_curve()
    for change in ({"mlx": "0.33.0"}, {"target": "cc"}, {"device": "Apple M10"}):
        assert find_curve(replace(MACHINE, **change)) is None
    assert find_curve(replace(MACHINE, draft="another")) == a_curve().without_draft()
    path.write_text(path.read_text()[:-40])
    assert find_curve(MACHINE) is None


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="TOKALIGN_CACHE"):
        store_curve(a_curve())


@pytest.mark.skipif(sys.platform != "linux", reason="where the cache is depends on the system")
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/c")
    monkeypatch.setenv("TOKALIGN_CACHE", "~/mine")
    monkeypatch.setenv("HOME", "/home/ala")
    assert cache_folder() == Path("/home/ala/mine")
    monkeypatch.delenv("TOKALIGN_CACHE")
    assert cache_folder() == Path("/var/c/tokalign")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/ala/.cache/tokalign")


def test_after_the_measured_rows_the_last_step_goes_on() -> None:
    costs = Costs(rows=(1.0, 1.5, 2.5))
    assert costs.verify(5) == pytest.approx(4.5)
    assert Costs(rows=(2.0,)).verify(9) == 2.0
    assert Costs(rows=(1.0, 2.0, 1.5)).verify(9) == 1.5  # more rows are never taken to cost less
