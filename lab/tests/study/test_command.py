"""`python -m lab study`: measured, resumed, written and checked, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from markup import assert_self_contained
from places import DEMO
from random_drafters import random_drafter, write_drafter
from studied import a_result
from written_tables import write_bundle

from lab.study.bench import StudyBench
from lab.study.check import SCHEMA
from lab.study.command import _language_of_prompts, command
from lab.study.conditions import PromptBlock
from lab.study.prompts import PromptFiles, study_prompts
from lab.study.protocol import PRESETS
from lab.study.setup import _table_digests
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.errors import IncompatibleError, MissingAssetError, TokalignError, UsageError
from tokalign.evaluate.calibrate import measure_curve
from tokalign.locks import locked
from tokalign.runtime.cost import CostCurve
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.options import DraftingOptions
from tokalign.storage import LANGUAGES
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PAIR = ["--target", str(DEMO / "target"), "--draft", str(DEMO / "draft"), "--dtype", "float32"]
SHORT = ["--limit", "1", "-m", "6", "--condition", "exact", "--condition", "copy"]


def study(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)])


def briefly(target: Any, draft: Any, ids: Any, *, budget: float) -> CostCurve:
    assert budget > 0
    return measure_curve(target, draft, ids, budget=4.0, rows=(1, 2, 4, 8, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a short study that was stopped and given again."""
    output = tmp_path_factory.mktemp("study") / "out"
    run = StudyBench.run
    with pytest.MonkeyPatch.context() as patch:
        # A brief curve: how long one is measured is not what is tested here.
        patch.setattr("tokalign.evaluate.calibrate.measure_curve", briefly)

        def stopped(self: StudyBench, done: Any, **options: Any) -> Iterator[Any]:
            for count, one in enumerate(run(self, done, **options)):
                if count == 5:
                    raise KeyboardInterrupt
                yield one

        patch.setattr(StudyBench, "run", stopped)
        assert study(*PAIR, *SHORT, "--output", output).exit_code != 0
        patch.setattr(StudyBench, "run", run)
        result = study(*PAIR, *SHORT, "--output", output)
    assert result.exit_code == 0, result.output
    assert "holds 5 measurements already" in result.stderr
    (output / "stdout.txt").write_text(result.stdout)
    return output


@pytest.mark.slow
def test_a_study_writes_result_page_and_summary(folder: Path) -> None:
    assert_self_contained((folder / "study.html").read_text("utf-8"))
    summary = (folder / "study.md").read_text("utf-8")
    assert summary == (folder / "stdout.txt").read_text()
    saved = json.loads((folder / "study.json").read_text("utf-8"))
    groups = saved["figures"]["groups"]
    names = {(row["condition"]["name"], row["condition"]["k"]) for row in groups[0]["rows"]}
    assert names == {("plain", None), ("plain again", None), ("copy", 4)} | {
        ("exact", k) for k in (2, 4, "auto")
    }
    assert [group["prompt_set"] for group in groups[:4]] == [
        "", "encyclopedic", "instructions", "questions"
    ]  # fmt: skip
    assert {group["temperature"] for group in groups} == {0.0, 0.7}
    assert saved["setting"]["target"]["dtype"] == "float32"
    assert saved["setting"]["target"]["name"] == "target", "no path of this machine"
    assert str(DEMO.parent) not in json.dumps(saved)
    assert sum(row["outputs_that_differ"] for g in groups for row in g["rows"]) == 0
    assert {one["condition"]["chain"] for one in saved["causes"]} == {True, False}


@pytest.mark.slow
def test_what_is_whole_is_written_again_without_measuring(folder: Path) -> None:
    before = (folder / "study.json").read_text("utf-8")
    result = study(*PAIR, *SHORT, "--output", folder)
    assert result.exit_code == 0, result.output
    assert json.loads((folder / "study.json").read_text("utf-8")) == json.loads(before)


@pytest.mark.slow
def test_a_folder_of_another_study_is_refused(folder: Path) -> None:
    result = study(*PAIR, *SHORT, "-m", "7", "--output", folder)
    assert isinstance(result.exception, IncompatibleError)
    assert str(result.exception).endswith("give another folder with --output")


@pytest.mark.slow
def test_two_studies_do_not_measure_into_one_folder(folder: Path) -> None:
    before = (folder / "measurements.jsonl").read_bytes()
    with locked(folder / "study.lock", "studying", "wait"):
        result = study(*PAIR, *SHORT, "--output", folder)
    assert isinstance(result.exception, UsageError)
    assert f"is studying in {folder}; wait until it has ended, or give" in str(result.exception)
    assert (folder / "measurements.jsonl").read_bytes() == before


@pytest.mark.slow
def test_the_time_is_estimated_before_anything_is_measured(folder: Path) -> None:
    again = study(*PAIR, *SHORT, "--output", folder, "--estimate")
    assert again.stdout == "0 generations, about 0:00:00\n"


def test_results_are_checked(tmp_path: Path) -> None:
    good, bad = tmp_path / "one.json", tmp_path / "two.json"
    good.write_text(json.dumps(a_result().to_json()))
    assert study("--check", good).stdout == f"{good}: accepted\n"
    bad.write_text(json.dumps(a_result(control=1.3).to_json()))
    found = study("--check", good, "--check", bad)
    assert isinstance(found.exception, TokalignError)
    assert found.exception.exit_code == 1
    assert "two.json: not accepted\n  the control drifts" in found.stdout


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ([], UsageError, "--target"),
        (["--target", "x"], UsageError, "--output"),
        (["--target", "/no/such", "--output", "x"], MissingAssetError, "/no/such"),
        (["--target", "a", "--draft", "b", "--draft", "b", "--output", "x"], UsageError, "twice"),
    ],
)
def test_refusals_come_before_anything_is_loaded(
    arguments: list[str], error: type[TokalignError], says: str, tmp_path: Path
) -> None:
    result = study(*arguments)
    assert isinstance(result.exception, error)
    assert says in str(result.exception)
    assert not Path("x").exists()


def test_prompts_are_windows_and_turns_at_every_temperature(tmp_path: Path) -> None:
    articles = tmp_path / "a.jsonl"
    words = " ".join(f"słowo{i}" for i in range(300))
    articles.write_text(json.dumps({"body": words}) + "\n" + json.dumps({"body": "krótko"}) + "\n")
    target: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    files = PromptFiles(articles=articles, field="body")
    found = study_prompts(files, PRESETS["quick"], target)
    assert not files.own
    assert len(found.by_block) == 3 * 4 * 2
    blocks = [b for b in found.by_block if b.prompt_set == "encyclopedic" and not b.temperature]
    assert blocks[0] == PromptBlock("encyclopedic", 1, blocks[0].digest, temperature=0.0)
    assert len({block.digest for block in blocks}) == 4
    assert set(found.digests) == {"encyclopedic", "instructions", "questions"}
    assert found.digests != study_prompts(PromptFiles(), PRESETS["quick"], target).digests


def test_prompts_of_another_language_are_of_that_language() -> None:
    target: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    polish = study_prompts(PromptFiles(), PRESETS["quick"], target)
    for language in LANGUAGES:
        found = study_prompts(PromptFiles(language=language), PRESETS["quick"], target)
        assert len(found.by_block) == 3 * 4 * 2
        same = [name for name in found.digests if found.digests[name] == polish.digests[name]]
        assert len(same) == (3 if language == "pl" else 0), language


@pytest.mark.parametrize(
    ("given", "dictionaries", "preset", "chosen"),
    [
        (None, (), "quick", "pl"),
        ("uk", ("pl",), "quick", "uk"),
        (None, ("cs,pl",), "paper", "cs"),
        (None, ("notes", "cs"), "quick", "pl"),
        (None, ("cs",), "tasks", "pl"),
    ],
)
def test_the_language_of_the_prompts(
    given: str | None, dictionaries: tuple[str, ...], preset: str, chosen: str
) -> None:
    assert _language_of_prompts(given, dictionaries, preset) == chosen


def test_a_language_without_prompts_is_answered_with_those_there_are() -> None:
    result = study("--target", "/no/such", "--output", "x", "--prompt-language", "de")
    assert isinstance(result.exception, UsageError)
    assert "only in cs, en, hu, lt, pl, sk, uk; give your own with --articles" in str(
        result.exception
    )


def test_tables_in_use_are_those_in_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of one name and language is used; a language that is not asked for is left out."""
    target: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Ala ma kota. " * 40 + "\n")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name, language, p_min in (
        (first, "a", "pl", 0.2), (second, "a", "pl", 0.3), (second, "b", "uk", 0.2),
        (second, "c", "pl", 0.2),
    ):  # fmt: skip
        options = BackoffOptions(p_min=p_min)
        built = build_dictionary(target, Corpus([corpus]), options, language=language)
        folder.mkdir(exist_ok=True)
        write_bundle(folder / f"{name}.dictionary.tok", built)
    monkeypatch.setenv("TOKALIGN_TABLES", str(second))
    all_of_them = _table_digests(DraftingOptions(), target.fingerprint, first)
    assert [*all_of_them] == ["a.dictionary.tok", "b.dictionary.tok", "c.dictionary.tok"]
    used = sha256((first / "a.dictionary.tok").read_bytes()).hexdigest()[:16]
    assert all_of_them["a.dictionary.tok"] == used
    polish = _table_digests(DraftingOptions(language="pl"), target.fingerprint, first)
    assert [*polish] == ["a.dictionary.tok", "c.dictionary.tok"]
    named = [folder / "a.dictionary.tok" for folder in (first, second)]
    both = _table_digests(DraftingOptions(dictionary=named), target.fingerprint, first)
    assert [*both] == ["a.dictionary.tok", "a.dictionary.tok 2"]
    assert len({*both.values()}) == 2


def test_tasks_have_prompts_of_their_own() -> None:
    target: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    found = study_prompts(PromptFiles(), PRESETS["tasks"], target)
    assert len(found.by_block) == 7 * 8 * 2
    assert (
        found.digests["questions"]
        != (study_prompts(PromptFiles(), PRESETS["paper"], target).digests["questions"])
    )


@pytest.mark.slow
def test_a_recurrent_drafter_is_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokalign.evaluate.calibrate.measure_curve", briefly)
    target: LanguageModel[TargetId] = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    write_drafter(tmp_path / "d", random_drafter(target.model), target)
    given = ["--target", DEMO / "target", "--drafter", tmp_path / "d", "--dtype", "float32"]
    short = ["--limit", "1", "-m", "5", "--condition", "drafter", "--output", tmp_path / "out"]
    result = study(*given, *short, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = found["figures"]["groups"][0]["rows"]
    assert [(row["condition"]["name"], row["condition"]["k"]) for row in rows[2:]] == [
        ("drafter", 4),
        ("drafter", "auto"),
    ]
    assert sum(row["outputs_that_differ"] for row in rows) == 0
    assert rows[2]["passes_per_round"] > 0
    described, target_model = found["setting"]["drafts"]["drafter"], found["setting"]["target"]
    assert described["tokenizer"] == target_model["tokenizer"]
    assert described["weights"] != target_model["weights"]
