"""Reports of machines: complete, private, and read as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machines_reference import page, section
from measured import block, measured
from places import ROOT

from tokalign.errors import UsageError
from tokalign.evaluate.comparison import BASELINES, Condition, compare
from tokalign.evaluate.machine_report import (
    MachineReport,
    MeasuredModels,
    Software,
    equality_of,
    public_name,
    read,
    report_of,
    system_name,
    write,
)
from tokalign.runtime.cost import CostCurve, Timing

HYBRID = Condition("hybrid", "auto")


MEASURED = [
    measured(
        condition,
        block(number, prompt_set="code" if number % 2 else "general"),
        token_ids=tuple(ids),
        prompt_tokens=400 * number,
        rounds=4,
        tokens_per_second=speed,
    )
    for number in (1, 2, 3)
    for condition, ids, speed in (
        (BASELINES[0], [1, 2, 3, 4], 10.0),
        (BASELINES[1], [1, 2, 3, 4], 10.1),
        (HYBRID, [1, 2, 9, 4] if number == 3 else [1, 2, 3, 4], 15.0),
    )
]


def report(**changes: Any) -> MachineReport:
    timing = Timing(median=0.05, low=0.04, high=0.06)
    rows = {1: timing, 2: timing}
    given: dict[str, Any] = {
        "curve": CostCurve(name="here", source="measured", context=128, rows=rows),
        "device": "Apple M9",
        "memory": 64 << 30,
        "software": Software(system=system_name(), mlx="1", tokalign="2"),
        "models": MeasuredModels(
            target="a", draft=None, drafter=None, memory=1 << 30, format="bfloat16", bits=8
        ),
        "language": "pl",
        "temperature": 0.0,
        "max_tokens": 4,
    }
    return report_of(compare(MEASURED), MEASURED, **{**given, **changes})


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    for written in (report(), report(curve=None, language=None)):
        file.write_text(write(written))
        assert read(file) == written


def test_it_has_each_kind_of_prompt_and_only_ways_to_draft() -> None:
    results = report().results
    assert results.keys() == {"all", "code", "general"}
    rows = [row for of_set in results.values() for row in of_set]
    assert {row.condition for row in rows} == {HYBRID}
    assert all(row.speedup == 1.5 and row.tokens_per_round == 1.0 for row in rows)


def test_equal_ids_are_counted_up_to_the_first_that_differs() -> None:
    short, long = equality_of(MEASURED)
    assert (short.context, short.compared, short.equal) == (512, 4, 4)
    assert (long.context, long.compared, long.equal) == (2048, 8, 6)


def test_a_folder_is_named_without_what_it_lies_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jan.kowalski" / "model"
    folder.mkdir(parents=True)
    assert public_name(str(folder)) == "model"
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert public_name(".") == public_name("~/model") == "model"
    assert public_name("speakleash/model") == "speakleash/model"
    assert public_name(None) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "jans-mac"},
        {"form": 1},
        {"memory": "much"},
        {"results": {"all": [{"path": "/home"}]}},
        {"report": "another"},
    ],
)
def test_what_is_no_report_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(json.loads(write(report())) | changed))
    with pytest.raises(UsageError, match="--publish"):
        read(file)


def test_the_page_shows_where_drafting_loses() -> None:
    lines = [*section(report())]
    assert any("Apple M9" in line for line in lines)
    assert any(line.startswith("| code | hybrid | auto | 1.00 | 1.50 |") for line in lines)


def test_the_page_is_current() -> None:
    """Else: python docs/machines_reference.py > docs/machines.md"""
    assert (ROOT / "docs" / "machines.md").read_text("utf-8") == page()
