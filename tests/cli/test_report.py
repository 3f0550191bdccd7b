"""Pages of `check`, `bench` and `calibrate`: a verdict, plots and figures, and no script."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_lines import run
from places import DEMO

from tokalign.cli.report import bar_plot, curve_plot, waterfall_plot, write_report
from tokalign.installation import install_line
from tokalign.runtime.cost import CostCurve, Timing

pytest.importorskip("pygal")


@pytest.mark.parametrize("missing", ["pygal", "jinja2"])
def test_what_a_page_takes_is_looked_for_before_any_work(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tokalign.cli.report.find_spec", lambda name: name != missing or None)
    page = ("check", "--target", DEMO / "target", "--html", tmp_path / "page.html")
    run(*page).is_refused(4, install_line(missing))


CURVE = CostCurve(
    name="a machine",
    source="a test",
    rows={1: Timing(1.0, 0.9, 1.1), 4: Timing(2.0, 1.8, 2.2)},
)


def test_a_plot_is_one_drawing_without_scripts_that_names_every_series() -> None:
    bars = bar_plot("speed", ["copy", "hybrid"], {"code": [1.2, (1.5, 1.1, 1.9)]})
    for plot, names in (
        (bars, ["copy", "code"]),
        (curve_plot(CURVE), ["a machine", "Apple M3 Max"]),
    ):
        ElementTree.fromstring(plot.svg)
        assert "<script" not in plot.svg
        for name in names:
            assert name in plot.svg


def test_a_page_escapes_what_it_is_told(tmp_path: Path) -> None:
    write_report(
        tmp_path / "page.html",
        title="<b>",
        about="",
        verdict=["1 < 2"],
        plots=[curve_plot(None)],
        head=("a",),
        rows=[("&",)],
    )
    page = (tmp_path / "page.html").read_text()
    assert "<b>" not in page
    assert "1 &lt; 2" in page
    assert "<svg" in page


def test_check_writes_its_page(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ala ma kota, a kot ma Alę.\n")
    typed = ("--target", DEMO / "target", tmp_path / "a.txt", "--html", tmp_path / "page.html")
    assert run("check", *typed).code == 0
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "target_fertility" in page


def test_a_waterfall_says_what_each_cause_takes() -> None:
    plot = waterfall_plot("from tokens to seconds", ("rows", "host"), (3.0, 2.0, 1.5))
    ElementTree.fromstring(plot.svg)
    for name in ("tokens per pass", "rows: -1.00", "host: -0.50", "speed by the clock"):
        assert name in plot.svg
