"""`tokalign calibrate` measures once and remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import Ended, run
from random_models import random_model
from ticking import ticking

from tokalign.cli.calibrate import measure_unless_known
from tokalign.runtime.cost import read_curve


def calibrate(models: dict[str, str], *words: object) -> Ended:
    pair = ("--target", models["target"], "--draft", models["draft"])
    with ticking():
        return run("calibrate", *pair, "--budget", "2", *words)


@pytest.fixture(scope="module")
def first(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """What the first calibration prints; its curve stays in the cache of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKALIGN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield calibrate(models, "--json")


def test_a_curve_is_measured_once_reused_and_refreshed(
    models: dict[str, str], first: Ended
) -> None:
    assert first.code == 0
    measured = first.json
    rows = measured["rows"]
    assert set(rows) >= {"1", "2", "4"}
    assert all(low <= median <= high for median, low, high in rows.values())
    assert measured["draft_pass"][0] > 0
    assert "cost curve ->" in first.err
    again = calibrate(models, "--json")
    assert "nothing has changed" in again.err
    assert again.json == measured
    assert "cost curve ->" in calibrate(models, "--refresh").err


def test_a_cache_that_takes_no_curve_is_refused_before_anything_is_measured(
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "file"))
    for name in ("measure_curve", "measure_briefly"):
        monkeypatch.setattr(f"tokalign.evaluate.calibrate.{name}", lambda *_, **__: 1 / 0)
    calibrate(models).is_refused(2, "set TOKALIGN_CACHE to a folder that you may write to")
    measure_unless_known(random_model(), None, None)  # a chat begins all the same
    assert "set TOKALIGN_CACHE to a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ({1: [3.0] * 3, 2: [9.0] * 3, 3: [2.0] * 3}, "the machine was busy (2 rows took 4.5"),
        (
            {1: [3.0], 2: [3.0], 4: [3.0]},
            "there was too little time to repeat passes over 3",
        ),
    ],
)
def test_a_disturbed_measurement_is_no_verdict_and_nothing_is_written(
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: dict[int, list[float]],
    why: str,
) -> None:
    """More rows take less time by this clock, or none is timed twice."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tokalign.evaluate.calibrate.time_passes", lambda *_: times)
    for words in (("--html", tmp_path / "page.html"), ("--json",), ()):
        ended = calibrate(models, "--refresh", *words)
        ended.is_refused(1, f"not be measured: {why}", "--budget")
        assert ended.out == ""
    assert [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.html")] == []


def test_a_fall_that_is_seen_every_time_is_the_machine_s(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {1: [3.0] * 5, 2: [9.0] * 5, 3: [2.0] * 5}
    monkeypatch.setattr("tokalign.evaluate.calibrate.time_passes", lambda *_: times)
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    assert calibrate(models, "--refresh").code == 0
    [curve] = (tmp_path / "curves").glob("*.json")
    assert read_curve(str(curve)).row_times[:3] == (3.0, 9.0, 2.0)
