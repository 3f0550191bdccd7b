"""A file of measurements: what is killed goes on, and nothing that does not belong is mixed in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studied import a_block, measured

from lab.study.conditions import PLAIN, Condition
from lab.study.measurements import MeasurementFile, StudyMeasurement, Work, read_measurements
from tokalign.errors import IncompatibleError, UsageError

ABOUT = {"target": "demo (abc)", "max_tokens": 64, "draft": None}
EXACT = Condition("exact", 2)
ALL = [measured(Condition(PLAIN), a_block(n)) for n in range(1, 4)] + [measured(EXACT)]
REMEDY = "give another --output"


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    file = MeasurementFile(tmp_path / "r.jsonl", ABOUT, REMEDY)
    assert file.open() == []
    for one in ALL:
        file.append(one)
    assert file.open() == ALL
    assert read_measurements(file.path, remedy=REMEDY) == (ABOUT, ALL)


@given(st.data())
def test_killed_anywhere_it_goes_on_from_the_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = MeasurementFile(tmp_path_factory.mktemp("r") / "r.jsonl", ABOUT, REMEDY)
    file.open()
    header = file.path.stat().st_size
    for one in ALL:
        file.append(one)
    whole = file.path.read_bytes()
    end = data.draw(st.integers(header, len(whole)))
    file.path.write_bytes(whole[:end])
    kept = file.open()
    assert kept == ALL[: len(kept)]
    assert len(kept) == whole[header:end].count(b"\n")
    for one in ALL[len(kept) :]:
        file.append(one)
    assert file.path.read_bytes() == whole


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_killed_while_the_first_line_was_written_it_begins_again(
    tmp_path: Path, length: int
) -> None:
    file = MeasurementFile(tmp_path / "r.jsonl", ABOUT, REMEDY)
    file.open()
    header = file.path.read_bytes()
    file.path.write_bytes(header[:length])
    assert file.open() == []
    assert file.path.read_bytes() == header


def test_reading_a_whole_file_leaves_its_time_alone(tmp_path: Path) -> None:
    """The time is the date of a study, which is that of its last measurement."""
    file = MeasurementFile(tmp_path / "r.jsonl", ABOUT, REMEDY)
    file.open()
    file.append(ALL[0])
    os.utime(file.path, (1e9, 1e9))
    assert file.open() == ALL[:1]
    assert file.path.stat().st_mtime == 1e9


@pytest.mark.parametrize(
    "other", [ABOUT | {"target": "demo (def)"}, ABOUT | {"dtype": "float32"}, {"target": "x"}]
)
def test_measurements_of_something_else_are_refused(tmp_path: Path, other: dict[str, str]) -> None:
    file = MeasurementFile(tmp_path / "r.jsonl", ABOUT, REMEDY)
    file.open()
    assert MeasurementFile(file.path, other, REMEDY).open() == []  # it holds none yet
    file.path.unlink()
    file.open()
    file.append(ALL[0])
    with pytest.raises(IncompatibleError, match="--output"):
        MeasurementFile(file.path, other, REMEDY).open()


@pytest.mark.parametrize(
    "content",
    ["{}\n", "text\n", "[]\n", '{"format": "tokalign-bench", "version": 9, "about": {}}\n'],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="--output"):
        MeasurementFile(path, ABOUT, REMEDY).open()
    assert path.read_text() == content


def test_a_measurement_is_its_json() -> None:
    one = measured(EXACT, tokens_per_second=12.345678901234567, work=Work(rows={2: 3}))
    assert StudyMeasurement.from_json(json.loads(json.dumps(one.to_json()))) == one
