"""`tokalign bench`: measured, kept, resumed, shown in every form, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from places import DEMO

from tokalign.cli.bench import command
from tokalign.cli.bench_options import read_prompts
from tokalign.errors import IncompatibleError, TokalignError, UsageError
from tokalign.evaluate.bench import Bench
from tokalign.evaluate.measurements import read_measurements
from tokalign.shipped import LANGUAGES

PAIR = ["--target", str(DEMO / "target"), "--draft", str(DEMO / "draft"), "--dtype", "float32"]
SHORT = ["-m", "8", "--limit", "1", "-k", "2", "--method", "exact", "--method", "copy"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The measurements of a short run."""
    folder = tmp_path_factory.mktemp("bench")
    results = folder / "r.jsonl"
    saved = ["--save", str(folder / "x.md")]
    result = bench(*PAIR, *SHORT, "--results", str(results), "--json", *saved)
    assert result.exit_code == 0, result.output
    (folder / "x.json").write_text(result.stdout)
    return results


@pytest.mark.slow
def test_three_sets_are_measured_and_shown(kept: Path) -> None:
    found = json.loads(kept.with_name("x.json").read_text())
    assert list(found["sets"]) == ["encyclopedic", "instructions", "questions"]
    assert [(row["name"], row["k"]) for row in found["overall"]] == [
        ("plain", None),
        ("plain again", None),
        ("exact", 2),
        ("copy", 2),
    ]
    assert found["ids_that_differ"] == 0
    assert all(row["prompts"] == 3 for row in found["overall"])
    assert {row["against_plain"] for row in found["overall"]} == {""}, "three prompts say nothing"
    typed = f"tokalign bench --target {DEMO}/target --draft {DEMO}/draft"
    assert found["about"]["command"].startswith(typed)
    assert "--method exact --method copy" in found["about"]["command"]
    assert "| exact | 2 |" in kept.with_name("x.md").read_text("utf-8")
    documented = (DEMO.parent / "docs" / "metrics.md").read_text("utf-8")
    assert [key for key in found["overall"][2] if f"`{key}`" not in documented] == []


def test_what_is_kept_is_shown_without_a_model(kept: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.md"
    shown = bench("--results", str(kept), "--save", str(saved))
    assert (shown.exit_code, "plain" in shown.stdout) == (0, True)
    tables = [
        file.read_text("utf-8").split("## all")[1] for file in (saved, kept.with_name("x.md"))
    ]
    assert tables[0] == tables[1]


def test_a_killed_run_goes_on(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "r.jsonl"
    lines = kept.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    taken = []
    run = Bench.run

    def counted(self: Bench, done: Any) -> Iterator[Any]:
        for one in run(self, done):
            taken.append(one)
            yield one

    monkeypatch.setattr(Bench, "run", counted)
    result = bench(*PAIR, *SHORT, "--results", str(results))
    assert result.exit_code == 0, result.output
    assert "holds 3 measurements already" in result.stderr
    assert len(taken) == 12 - 3
    ids = [m.token_ids for m in read_measurements(results)[1]]
    assert ids == [m.token_ids for m in read_measurements(kept)[1]]


def test_a_file_of_other_settings_is_refused(kept: Path) -> None:
    result = bench(*PAIR, *SHORT, "-m", "9", "--results", str(kept))
    assert isinstance(result.exception, IncompatibleError)
    assert "max_tokens" in str(result.exception)
    other = ["--target", str(DEMO / "draft"), "--draft", str(DEMO / "draft"), "--dtype", "float32"]
    result = bench(*other, *SHORT, "--results", str(kept))
    assert isinstance(result.exception, IncompatibleError)
    assert "target" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ([], UsageError, "--target"),
        (["--target", "x", "--method", "exakt"], UsageError, "no condition 'exakt'; choose a"),
        (["--target", "x", "--method", "exact"], UsageError, "--method exact needs a draft"),
        (["--target", "x", "--save", "/no/x.md"], UsageError, "/no/x.md cannot be written"),
        (["--target", "x", "-k", "2,none"], UsageError, "--num-draft-tokens"),
        (["--target", "x", "-k", "0"], UsageError, "--method plain"),
    ],
)
def test_refusals_come_before_anything_is_loaded(
    arguments: list[str], error: type[TokalignError], says: str
) -> None:
    result = bench(*arguments)
    assert isinstance(result.exception, error)
    assert says in str(result.exception)


def test_a_condition_that_lacks_what_it_needs_is_refused() -> None:
    alone = ["--target", str(DEMO / "target"), "--limit", "1", "-m", "4"]
    assert "--draft" in str(bench(*alone, "--method", "exact").exception)
    result = bench(*PAIR, "--limit", "1", "--method", "none")
    assert isinstance(result.exception, IncompatibleError)


def test_windows_are_cut_in_target_tokens(tmp_path: Path) -> None:
    windows, results = tmp_path / "w.txt", tmp_path / "r.jsonl"
    windows.write_text("Wisła jest najdłuższą rzeką w Polsce\n")
    cut = [
        str(windows),
        "--ignore-chat-template",
        "--prompt-tokens",
        "5",
        "--results",
        str(results),
    ]
    assert bench(*PAIR, "-m", "4", "-k", "2", "--method", "exact", *cut).exit_code == 0
    measured = read_measurements(results)[1]
    assert [m.prompt_tokens for m in measured] == [5, 5, 5]
    assert len({m.token_ids for m in measured}) == 1


@pytest.mark.parametrize(("default", "measured_in"), [("float32", "float32"), (None, "of the we")])
def test_the_device_chooses_the_number_format(
    default: str | None, measured_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokalign.runtime.mlx.weights.default_dtype", lambda: default)
    (tmp_path / "p.txt").write_text("Wisła\n")
    given = ["--target", str(DEMO / "target"), str(tmp_path / "p.txt"), "-m", "2"]
    result = bench(*given, "-k", "2", "--method", "copy", "--json")
    assert json.loads(result.stdout)["about"]["dtype"].startswith(measured_in)
    assert result.stderr.count("weights in float32") == (default is not None)


@pytest.mark.slow
def test_prompts_are_in_the_language_that_is_asked_for(tmp_path: Path) -> None:
    given = ["--target", str(DEMO / "target"), "--limit", "1", "-m", "2", "-k", "2"]
    given += ["--method", "copy", "--dtype", "float32", "--json"]
    english, ukrainian = bench(*given), bench(*given, "--prompt-language", "uk")
    assert "prompts -> those in en; --prompt-language CODE" in english.stderr
    assert "prompts ->" not in ukrainian.stderr
    assert json.loads(ukrainian.stdout)["sets"].keys() == json.loads(english.stdout)["sets"].keys()
    for option in ("--prompt-language", "--language"):
        refused = bench(*given, option, "crh")
        assert isinstance(refused.exception, UsageError)
        assert "no prompts in language crh" in str(refused.exception)


def test_prompts_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("jeden\n\ndwa\n")
    (tmp_path / "b.jsonl").write_text('{"text": "trzy"}\n')
    found = read_prompts(
        [tmp_path / "a.txt"], [tmp_path / "b.jsonl"], field="text", limit=None, repeats=2
    )
    assert [(one.block.prompt_set, one.text, one.window) for one in found[:3]] == [
        ("b", "trzy", True),
        ("a", "jeden", False),
        ("a", "dwa", False),
    ]
    assert [one.block.repeat for one in found] == [1, 1, 1, 2, 2, 2]
    assert len({one.block for one in found}) == 6


@pytest.mark.parametrize("language", LANGUAGES)
def test_our_own_prompts_are_thirty(language: str) -> None:
    found = read_prompts([], [], field="text", limit=None, language=language)
    assert len(found) == len({one.text for one in found}) == 30
    assert sum(one.window for one in found) == 10


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "a.jsonl"]
    with pytest.raises(UsageError, match="rename"):
        read_prompts(paths, [], field="text", limit=None)
