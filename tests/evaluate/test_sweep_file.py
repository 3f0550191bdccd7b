"""A sweep's file: what is in it is there, once; a killed sweep goes on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tokalign.errors import IncompatibleError, UsageError
from tokalign.evaluate.sweep import SweepFile, SweepResult, Variant, by_line, sweep, variants
from tokalign.tables.bundle import Bundle

WANTED = variants({"backoff": [1000, 2000], "dictspec": [50]}, [1, 3, 5], [0.1])
FIGURES = {
    "speedup": 1.25,
    "coverage": 0.5,
    "mean_accepted_length": 0.5,
    "draft_acceptance_rate": 0.25,
    "rows_per_step": 2.0,
    "tokens": 100,
}


class KilledError(Exception):
    """In the middle of a sweep."""


def run(
    file: SweepFile, *, killed_at: int | None = None
) -> tuple[list[SweepResult], list[Variant]]:
    """Sweep what is missing; all results, and what had to be built."""
    results, built = file.open(), list[Variant]()

    def build(variant: Variant) -> Bundle:
        if len(built) == killed_at:
            raise KilledError
        built.append(variant)
        return Bundle(
            kind="dictionary", fingerprints={}, statistics={"entries": 7}, sections={"a": b"x"}
        )

    def measure(_: Bundle) -> Mapping[str, Mapping[str, float]]:
        return {"one, two.txt": FIGURES, "ł.txt": FIGURES}

    missing = sorted(set(WANTED) - {result.variant for result in results})
    for found in sweep(missing, file, build=build, measure=measure):
        results += found
    return results, built


def test_orders_that_a_kind_lacks_are_left_out() -> None:
    assert {(v.kind, v.order) for v in WANTED} == {
        *(("backoff", order) for order in (1, 3, 5)),
        *(("dictspec", order) for order in (1, 3)),
    }
    assert len(WANTED) == 8


@pytest.mark.parametrize("killed_at", range(8))
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path, killed_at: int) -> None:
    whole, built = run(SweepFile(tmp_path / "whole.csv", "b", 2))
    assert built == WANTED
    file = SweepFile(tmp_path / "killed.csv", "b", 2)
    with pytest.raises(KilledError):
        run(file, killed_at=killed_at)
    resumed, built = run(file)
    assert built == WANTED[killed_at:]
    assert resumed == whole
    assert file.path.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert run(file) == (whole, [])


def test_a_line_that_was_broken_off_is_done_again(tmp_path: Path) -> None:
    file = SweepFile(tmp_path / "a.csv", "b", 2)
    whole, _ = run(file)
    content = file.path.read_bytes()
    start = content.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start + 1, len(content)):
        file.path.write_bytes(content[:end])
        assert file.open() == whole[:-2]
        assert content.startswith(file.path.read_bytes())


def test_a_table_is_done_once_all_its_texts_are(tmp_path: Path) -> None:
    """Killed between two lines of one table: it is measured again, nothing is there twice."""
    file = SweepFile(tmp_path / "a.csv", "b", 2)
    whole, _ = run(file)
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(b"".join(lines[:-1]))
    found, _ = run(file)
    assert sorted(map(str, found)) == sorted(map(str, whole))


def test_other_files_are_refused(tmp_path: Path) -> None:
    run(SweepFile(tmp_path / "a.csv", "b", 2))
    with pytest.raises(IncompatibleError, match="--results"):
        SweepFile(tmp_path / "a.csv", "other", 2).open()
    (tmp_path / "notes.txt").write_text("my notes\nthat are dear to me\n")
    with pytest.raises(UsageError, match="not a sweep"):
        SweepFile(tmp_path / "notes.txt", "b", 2).open()
    assert (tmp_path / "notes.txt").read_text() == "my notes\nthat are dear to me\n"


def test_a_line_of_a_plot_varies_in_size_alone(tmp_path: Path) -> None:
    results, _ = run(SweepFile(tmp_path / "a.csv", "b", 2))
    for _, line in by_line([result for result in results if result.text == "ł.txt"]):
        assert len({(o.kind, o.order, o.p_min) for o in line}) == 1
        assert [o.size for o in line] == sorted({o.size for o in line})
