"""`tokalign sweep`: tables built, measured, kept, drawn."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from polish import SENTENCES

from tokalign.cli.sweep import command
from tokalign.errors import CorpusError, UsageError


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    plain = [sentence.replace("\n", " ") for sentence in SENTENCES]
    (tmp_path / "corpus.txt").write_text("\n".join(plain * 5) + "\n")
    (tmp_path / "text.txt").write_text("\n".join(plain[:3]) + "\n")
    return [
        *("--target", "bielik", "--order", "1,2", "--p-min", "0.2", "--quiet"),
        *("--corpus", str(tmp_path / "corpus.txt"), "--text", str(tmp_path / "text.txt")),
        *("--dictionary-bytes", "100_000", "--ngrams", "20,200"),
        *("--results", str(tmp_path / "sweep.csv")),
    ]


def results(arguments: list[str]) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(result.stdout)["results"]
    return found


def test_every_combination_is_measured_once(arguments: list[str], tmp_path: Path) -> None:
    found = results(arguments)
    assert {(o["kind"], o["order"], o["size"]) for o in found} == {
        *(("backoff", order, 100_000) for order in (1, 2)),
        *(("dictspec", order, size) for order in (1, 2) for size in (20, 200)),
    }
    assert len(found) == 6
    for result in found:
        saved = 1 + result["coverage"] * result["mean_accepted_length"]
        assert result["speedup"] == pytest.approx(saved)
    best = {o["order"]: o["speedup"] for o in found if o["kind"] == "backoff"}
    assert best[2] > best[1] > 1, "the corpus holds the text"
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [float(row["speedup"]) for row in csv.DictReader(file)] == [
            o["speedup"] for o in found
        ]


def test_a_sweep_resumes_and_is_drawn(arguments: list[str], tmp_path: Path) -> None:
    whole = results(arguments)
    kept = (tmp_path / "sweep.csv").read_text().splitlines(keepends=True)
    (tmp_path / "sweep.csv").write_text("".join(kept[:3]) + kept[3][:9])
    plot = tmp_path / "sweep.html"
    assert results([*arguments, "--plot", str(plot)]) == whole
    page = plot.read_text()
    assert page.count("<svg") == 1
    assert "dictspec, order 2, p_min 0.2" in page
    assert "speedup" in CliRunner().invoke(command, arguments).stdout


def test_what_cannot_be_swept_is_refused(arguments: list[str], tmp_path: Path) -> None:
    def refused(*more: str) -> Any:
        return CliRunner().invoke(command, [*arguments, *more])

    assert isinstance(refused("--kind", "magic").exception, UsageError)
    too_long = str(refused("--order", "1,9").exception)
    assert "--order 9" in too_long
    assert "8 of backoff, 3 of dictspec" in too_long
    assert "not a list of numbers" in refused("--order", "a").output
    assert "of at least 1" in refused("--ngrams", "0").output
    missing = refused("--corpus", str(tmp_path / "none.txt")).exception
    assert isinstance(missing, CorpusError)
