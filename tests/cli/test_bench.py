"""`tokalign bench`: measured, shown in every form, and every refusal."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command_lines import Ended, run, words
from measured import block
from measured import measured as measurement
from places import DEMO

from tokalign.cli.bench import Options, as_object, read_options
from tokalign.cli.bench_results import COLUMNS
from tokalign.cli.output import figures_table
from tokalign.cli.texts import language_of_prompts, read_prompts
from tokalign.errors import UsageError
from tokalign.evaluate.bench import Bench
from tokalign.evaluate.comparison import BASELINES, Comparison, Condition, Measurement, compare
from tokalign.evaluate.machine_report import read as read_report
from tokalign.storage import POLISH, sample_text

PAIR = ["--target", str(DEMO / "target"), "--draft", str(DEMO / "draft"), "--dtype", "float32"]
SHORT = ["-m", "8", "--limit", "1", "-k", "2", "--method", "exact", "--method", "copy"]


def bench(*words: object) -> Ended:
    return run("bench", *words)


def test_three_sets_are_measured_shown_and_reported(tmp_path: Path) -> None:
    report = tmp_path / "mine.json"
    measured = bench(*PAIR, *SHORT, "--json", "--publish", report)
    found = measured.json
    published = read_report(report)
    assert report.read_text() in measured.err, "it is shown"
    assert "; give FILEs for others" in measured.err, "a --language needs a dictionary of it"
    assert "/" not in published.models.target
    assert published.results.keys() == {"all", *found["sets"]}
    assert all(one.compared == one.equal for one in published.equality)
    assert list(found["sets"]) == ["encyclopedic", "instructions", "questions"]
    names = {"plain": None, "plain again": None, "exact": 2, "copy": 2}
    assert [(row["name"], row["k"]) for row in found["overall"]] == [*names.items()]
    assert found["ids_that_differ"] == 0
    assert all(row["prompts"] == 3 for row in found["overall"])
    assert {row["against_plain"] for row in found["overall"]} == {""}, "three prompts say nothing"
    documented = (DEMO.parent / "docs" / "metrics.md").read_text("utf-8")
    assert [key for key in found["overall"][2] if f"`{key}`" not in documented] == []


def test_ctrl_c_keeps_the_prompts_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those under all conditions: here three, and then one of the second prompt."""
    measured, calls = Bench.measured, iter(range(99))

    def interrupted(self: Bench, *given: Any) -> Measurement:
        if next(calls) == 3 + 3 + 1:
            raise KeyboardInterrupt
        return measured(self, *given)

    monkeypatch.setattr(Bench, "measured", interrupted)
    short = ["--method", "copy", "-k", "2", "-m", "2", "--limit", "1", "--json"]
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    ended = bench(*PAIR, *short, "--html", page, "--publish", report)
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "tokalign: interrupted")
    assert [row["prompts"] for row in json.loads(ended.out)["overall"]] == [1, 1, 1]
    assert json.loads(ended.out)["about"]["cut_short"]
    assert "cut_short True" in page.read_text("utf-8")
    assert not report.exists()
    assert f"{report} is not written" in ended.err


def test_prompts_are_in_a_language_that_there_are_some_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the dictionary of code, which is no such language, is named first."""

    def asked(_files: object, *, language: str, **_: Any) -> None:
        raise UsageError(f"prompts in {language}")

    monkeypatch.setattr("tokalign.cli.bench.read_prompts", asked)
    bench("--target", DEMO / "target", "--language", "code,en").is_refused(2, "prompts in en")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float32_is_no_remedy_where_it_was_used(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "ids_that_differ", property(lambda _: 3))
    short = ["--method", "copy", "-m", "2", "--limit", "1", "--dtype", dtype]
    told = bench(*PAIR[:2], *short).err
    assert "3 ids differ from plain decoding" in told
    assert ("--dtype float32" in told) == (dtype == "bfloat16")


def test_what_is_measured_is_how_other_commands_draft() -> None:
    """Each round chooses its length, so that the verdict is about what a user will have."""
    values = {"target": "t", "draft": None, "methods": (), "lengths": None, "text": False}
    rest = dict.fromkeys(field.name for field in fields(Options) if field.name != "drafting")
    assert read_options({**rest, **values}).lengths == ["auto"]
    assert read_options({**rest, **values, "text": True}).lengths == [2, 4]


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("--target bielik --method exakt", 2, "no condition 'exakt'; choose a"),
        ("--target bielik --method exact", 2, "--method exact needs a draft"),
        ("--target bielik -k 2,none", 2, "--num-draft-tokens"),
        ("--target bielik -k 0", 2, "--method plain"),
        ("--target bielik a.txt a.jsonl", 2, "the same name; rename one"),
        ("--target bielik --language crh", 2, "no prompts in language crh"),
        ("--target bielik --text", 2, "FILEs"),
        ("--target bielik --text --method drafter", 2, "leave out --text"),
        ("--target bielik --text --method plain", 2, "drafts nothing"),
        (f"--target bielik --text {sample_text(POLISH)} -k auto", 2, "depends on costs"),
        ("--target TARGET --draft DRAFT --limit 1 --method none", 3, "tokenizer"),
    ],
)
def test_refusals_come_before_anything_is_measured(line: str, code: int, says: str) -> None:
    bench(*words(line)).is_refused(code, says)


@pytest.mark.parametrize(
    ("dictionaries", "language"),
    [("", None), ("code", None), ("code chat crh pl en", "pl"), ("chat crh", "crh")],
)
def test_prompts_are_in_a_language_that_has_some(dictionaries: str, language: str | None) -> None:
    assert language_of_prompts(words(dictionaries)) == language


def test_a_prompt_that_is_too_long_is_refused_before_any_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("raz\n" + "dwa " * 3000 + "\n")
    monkeypatch.setattr("tokalign.evaluate.bench.Bench.measured", None)
    line = [*words("--target TARGET --method copy"), str(tmp_path / "a.txt")]
    bench(*line).is_refused(2, "the model's context holds 2048")


def test_prompts_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("jeden\n\ndwa\n")
    (tmp_path / "b.jsonl").write_text('{"text": "trzy"}\n')
    found = read_prompts([tmp_path / "a.txt", tmp_path / "b.jsonl"], field="text", limit=None)
    assert [(one.block.prompt_set, one.text, one.window) for one in found] == [
        ("a", "jeden", False),
        ("a", "dwa", False),
        ("b", "trzy", False),
    ]
    assert len({one.block for one in found}) == 3
    own = read_prompts([], field="text", limit=None, language="pl")
    assert (len(own), sum(one.window for one in own)) == (30, 10)


CONDITIONS = [*BASELINES, Condition("exact", 2), Condition("exact", 4), Condition("copy", 2)]
ABOUT = {"target": "a <model>", "draft": None}


@pytest.mark.parametrize("prompts", [0, 1, 4])
@pytest.mark.parametrize("speed", [0.0, 0.5, 500.0])
def test_tables_have_all_rows_and_columns(prompts: int, speed: float) -> None:
    comparison = compare(
        measurement(
            condition,
            block(number, prompt_set=name),
            tokens_per_second=speed * number,
            accepted=number if condition.drafts else 0,
        )
        for name in "ab"
        for number in range(prompts)
        for condition in CONDITIONS
    )
    found = as_object(comparison, ABOUT)
    lines = figures_table(COLUMNS, found["overall"]).split("\n")
    assert len(lines) == 2 + len(comparison.overall)
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 1}
    assert len(set(map(len, lines))) == 1, "aligned"
    assert json.loads(json.dumps(found, allow_nan=False))["about"] == ABOUT
