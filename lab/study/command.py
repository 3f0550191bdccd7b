"""`python -m lab study`: the papers' experiments by one command, and results that others add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.study.prompts import PromptFiles, study_prompts
from lab.study.protocol import PRESETS, Arm, arms, only
from lab.study.setup import (
    CURVES,
    Loaded,
    StudyOptions,
    assembled,
    cost_curves,
    drafts_of,
    load,
    setting_of,
)
from tokalign.cli.command import AT_LEAST_1, FILE, FOLDER, NAME, Command, Option
from tokalign.cli.options import DICTIONARY, DTYPE, LANGUAGE
from tokalign.cli.output import echo, flags, note, print_json, progress, show
from tokalign.errors import TokalignError, UsageError
from tokalign.locks import locked
from tokalign.storage import LANGUAGES, POLISH, parse_json, prompts, write_file, writing_to

if TYPE_CHECKING:
    from lab.study.causes import Attribution
    from lab.study.measurements import MeasurementFile
    from lab.study.result import Result, Setting
    from lab.study.run import Study
    from tokalign.runtime.cost import CostCurve

_MEASUREMENTS, _CAUSES, _LOCK = "measurements.jsonl", "causes.json", "study.lock"
_RESULT, _PAGE, _SUMMARY = "study.json", "study.html", "study.md"


_OPTIONS = (
    Option("--target --model target", "The model: an alias, a folder or a Hub repository.", NAME),
    Option(
        "--draft --draft-model draft",
        "A smaller model that drafts; its tokenizer may be another one. Repeatable.",
        NAME,
        multiple=True,
    ),
    Option("--drafter", "A trained drafter. Default: the one that is found.", FOLDER),
    Option(
        "--preset",
        "quick: 4 prompts of each set. paper: 50, as in the Polish study. tasks: 8 of each task "
        "of Spec-Bench.",
        click.Choice([*PRESETS]),
        "quick",
    ),
    Option(
        "--output",
        "Where measurements, result, page and summary go; a killed study resumes from it.",
        FOLDER,
    ),
    Option("--articles", "Encyclopedic texts. Default: tokalign's own.", FILE),
    Option("--instructions", "User messages. Default: tokalign's own.", FILE),
    Option("--questions", "Short questions. Default: tokalign's own.", FILE),
    Option("--field", "The field of a .jsonl object, or the column of Parquet.", default="text"),
    Option(
        "--prompt-language",
        f"The language of tokalign's own prompts: {', '.join(LANGUAGES)}. Default: the first of "
        f"--language if it is one of these, else {POLISH}.",
        metavar="CODE",
    ),
    Option("--limit", "Only the first N prompts of each set. Default: the preset's.", AT_LEAST_1),
    Option("-m --max-tokens", "Tokens to generate at most. Default: the preset's.", AT_LEAST_1),
    Option(
        "--condition conditions",
        "Measure only this method or translation; repeatable.",
        multiple=True,
        metavar="NAME",
    ),
    DTYPE,
    DICTIONARY,
    LANGUAGE,
    Option("--estimate", "Say how long it would take, and stop.", is_flag=True),
    Option("--check", "Check whether a result can be shared; repeatable.", FILE, multiple=True),
)


@click.command("study", cls=Command, params=[*_OPTIONS])
def command(
    *,
    target: str | None,
    output: Path | None,
    check: tuple[Path, ...],
    **given: Any,
) -> None:
    """Run the Polish study's experiments and tokalign's own on this machine.

    Every prompt is decoded under every condition, conditions take turns, and plain decoding is
    measured twice; a prompt on which the two differ is measured again. The output folder gets
    study.json (a result that --check accepts and others can compare), study.html and study.md.
    """
    if check:
        _check(check)
        return
    if target is None:
        raise UsageError("nothing to study; give --target NAME, or results with --check FILE")
    if output is None:
        raise UsageError("a study expects a folder for what it measures; give --output FOLDER")
    _study(target, output, **given)


# -- results of others -----------------------------------------------------------------------------


def _check(paths: Sequence[Path]) -> None:
    """Print what is wrong with results. Raises: TokalignError if anything is."""
    from lab.study.check import check_file

    problems = {str(path): check_file(path) for path in paths}
    if flags.as_json:
        results = [{"file": p, "accepted": not f, "problems": f} for p, f in problems.items()]
        print_json({"results": results})
    else:
        for path, found in problems.items():
            echo("\n  ".join([f"{path}: {'not accepted' if found else 'accepted'}", *found]))
    if wrong := sum(map(bool, problems.values())):
        raise TokalignError(
            f"{wrong} of {len(paths)} results expected to be sound are not; measure again with "
            "python -m lab study, and leave the file as it is written"
        )


# -- measuring -------------------------------------------------------------------------------------


def _study(
    target: str,
    output: Path,
    *,
    draft: tuple[str, ...],
    drafter: Path | None,
    preset: str,
    limit: int | None,
    max_tokens: int | None,
    prompt_language: str | None,
    conditions: tuple[str, ...],
    estimate: bool,
    dtype: str | None,
    dictionary: tuple[Path, ...],
    language: tuple[str, ...],
    **files: Any,
) -> None:
    protocol, own = PRESETS[preset], PromptFiles(**files)
    chosen_language = _language_of_prompts(prompt_language, language, preset)
    options = StudyOptions(
        target=target,
        draft=draft,
        drafter=drafter,
        protocol=replace(
            protocol,
            prompts=limit or protocol.prompts,
            max_tokens=max_tokens or protocol.max_tokens,
        ),
        files=replace(own, language=chosen_language),
        output=output,
        dtype=dtype,
        dictionary=dictionary,
        language=language,
        note=note,
    )
    loaded = load(options)
    if prompt_language is None and not all((own.articles, own.instructions, own.questions)):
        note(f"prompts -> those in {chosen_language}")
    chosen = only(arms(options.protocol, drafts_of(loaded)), conditions)
    given = study_prompts(options.files, options.protocol, loaded.alone.target.tokenizer)
    from lab.study.measurements import MeasurementFile
    from tokalign.api.assemble import keep_loaded

    keep_loaded()
    remedy = "give another folder with --output"
    with writing_to(output / CURVES, remedy):
        (output / CURVES).mkdir(parents=True, exist_ok=True)
    with locked(output / _LOCK, f"studying in {output}", f"wait until it has ended, or {remedy}"):
        curves = cost_curves(options, loaded)
        study = assembled(options, loaded, chosen, given, curves)
        setting = setting_of(options, loaded, given)
        file = MeasurementFile(output / _MEASUREMENTS, _about(setting, chosen), remedy)
        if estimate:
            _estimate(study, file)
            return
        _measure(study, file)
        causes = _explained(output, loaded, study, chosen)
        result = _result(setting, file, curves, causes)
        _write(output, result)


def _language_of_prompts(given: str | None, dictionaries: Sequence[str], preset: str) -> str:
    """The language of tokalign's own prompts; those of tasks are Polish. Raises: UsageError."""
    if given is not None:
        prompts(given, instead="--articles, --instructions and --questions")
        return given
    first = dictionaries[0].partition(",")[0].strip() if dictionaries else POLISH
    return first if first in LANGUAGES and preset != "tasks" else POLISH


def _estimate(study: Study, file: MeasurementFile) -> None:
    done = file.open()
    generations, seconds = len(study.pending(done)), study.estimate(done)
    show(
        {"generations": generations, "seconds": round(seconds, 1)},
        lambda: f"{generations:,} generations, about {_duration(seconds)}",
    )


def _measure(study: Study, file: MeasurementFile) -> None:
    """Measure what the file does not hold yet."""
    done = file.open()
    if done:
        note(f"{file.path}: holds {len(done):,} measurements already")

    def told(generations: int, seconds: float) -> None:
        note(
            f"{generations:,} generations to measure, about {_duration(seconds)}; stop at any time "
            "and give the same command to go on"
        )

    with progress(len(study.pending(done)), "measuring") as advance:
        for measurement in study.run(done, told=told):
            file.append(measurement)
            advance(1)


def _result(
    setting: Setting,
    file: MeasurementFile,
    curves: Mapping[str, CostCurve],
    causes: Sequence[Attribution],
) -> Result:
    """What the file holds, as a result."""
    from lab.study.result import Result
    from lab.study.samples import samples_of

    return Result(
        setting=setting,
        measured=date.fromtimestamp(file.path.stat().st_mtime).isoformat(),
        curves=curves,
        samples=tuple(samples_of(file.open())),
        causes=tuple(causes),
    )


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _about(setting: Setting, chosen: Sequence[Arm]) -> dict[str, Any]:
    """Everything that has to be equal if a study is to be resumed."""
    about = asdict(setting)
    del about["power"]  # may change meanwhile, and is kept with each measurement
    del about["prompt_language"]  # the digests of the prompts say more
    return about | {"conditions": [str(arm.condition) for arm in chosen]}


def _explained(
    folder: Path, loaded: Loaded, study: Study, chosen: Sequence[Arm]
) -> list[Attribution]:
    """Why rounds ended, for some prompts: from the output folder, or else found now."""
    from lab.study.attribution import Explainer, explained

    protocol = study.protocol
    conditions = [a.condition for a in chosen if explained(a.condition, loaded.pairs)]
    blocks = [
        block
        for block in study.bench.prompts
        if block.number <= protocol.explained and block.temperature == protocol.temperatures[0]
    ]
    path = folder / _CAUSES
    found = _read_causes(path) if path.exists() else []
    known = {(one.block, one.condition) for one in found}
    wanted = [(b, c) for c in conditions for b in blocks]
    explainers = {name: Explainer(study.bench, name) for name in {c.draft for c in conditions}}
    with progress(len(wanted), "explaining") as advance:
        for block, condition in wanted:
            if (block, condition) not in known:
                found.append(explainers[condition.draft].explain(block, condition))
                write_file(path, json.dumps([one.to_json() for one in found]))
            advance(1)
    return [one for one in found if (one.block, one.condition) in set(wanted)]


def _read_causes(path: Path) -> list[Attribution]:
    from lab.study.causes import Attribution

    try:
        return list(map(Attribution.from_json, parse_json(path.read_text("utf-8"))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} does not hold the causes of rounds ({type(error).__name__}: {error}); remove "
            "it, and they are found again"
        ) from error


def _write(folder: Path, result: Result) -> None:
    """Write result, page and summary, and print the summary, or the figures as JSON."""
    from lab.study.check import problems_of
    from lab.study.page import study_page, study_summary

    saved, summary = result.to_json(), study_summary(result)
    write_file(folder / _RESULT, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    write_file(folder / _PAGE, study_page(result))
    write_file(folder / _SUMMARY, summary)
    show(
        {name: saved[name] for name in ("setting", "measured", "figures", "digest")},
        lambda: summary.removesuffix("\n"),
    )
    for problem in problems_of(saved, name=_RESULT):
        note(f"--check would not accept this result: {problem}")
    note(f"result, page and summary -> {folder}")
