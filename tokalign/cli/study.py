"""`tokalign study`: the papers' experiments by one command, and results that others add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign import __version__
from tokalign.atomic_file import write_file
from tokalign.cli.drafting_options import dictionary_option, dtype_option, language_option
from tokalign.cli.output import echo, note, progress, quiet_option
from tokalign.cli.study_prompts import PromptFiles, StudyPrompts, study_prompts
from tokalign.cli.texts import field_option
from tokalign.errors import TokalignError, UsageError
from tokalign.evaluate.study.protocol import PRESETS, Arm, Drafts, Protocol, arms, only

if TYPE_CHECKING:
    from tokalign.cost.curve import CostCurve
    from tokalign.evaluate.study.causes import Attribution
    from tokalign.evaluate.study.result import Result, Setting
    from tokalign.evaluate.study.run import Study
    from tokalign.runtime.decoder import Decoder

_PATH = click.Path(path_type=Path)
_MEASUREMENTS, _CAUSES, _CURVES = "measurements.jsonl", "causes.json", "curves"
_RESULT, _PAGE, _SUMMARY = "study.json", "study.html", "study.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str | None
    draft: tuple[str, ...]
    preset: str
    output: Path | None
    articles: Path | None
    instructions: Path | None
    questions: Path | None
    field: str
    prompts: int | None
    max_tokens: int | None
    conditions: tuple[str, ...]
    dtype: str | None
    dictionary: tuple[Path, ...]
    language: tuple[str, ...]
    estimate: bool
    check: tuple[Path, ...]
    compare: tuple[Path, ...]
    save: Path | None
    quiet: bool

    def note(self, message: str) -> None:
        """Print a line on stderr unless `quiet`."""
        note(message, quiet=self.quiet)

    @property
    def protocol(self) -> Protocol:
        """The preset with what was changed in it."""
        changed = {"prompts": self.prompts, "max_tokens": self.max_tokens}
        given = {name: value for name, value in changed.items() if value is not None}
        return replace(PRESETS[self.preset], **given)  # type: ignore[arg-type]

    @property
    def files(self) -> PromptFiles:
        """Where the prompts come from."""
        return PromptFiles(
            articles=self.articles,
            instructions=self.instructions,
            questions=self.questions,
            field=self.field,
        )


@click.command("study")
@click.option("--target", "--model", "target", metavar="NAME", help="The model.")
@click.option(
    "--draft", "--draft-model", "draft", multiple=True, metavar="NAME",
    help="A smaller model; repeatable.",
)  # fmt: skip
@click.option("--preset", type=click.Choice([*PRESETS]), default="quick")
@click.option(
    "--output", type=_PATH, metavar="FOLDER",
    help="Where measurements, result, page and summary go; a killed study resumes from it.",
)  # fmt: skip
@click.option("--articles", type=_PATH, metavar="FILE", help="Encyclopedic texts; else own ones.")
@click.option("--instructions", type=_PATH, metavar="FILE", help="User messages; else own ones.")
@click.option("--questions", type=_PATH, metavar="FILE", help="Short questions; else own ones.")
@field_option
@click.option("--prompts", type=click.IntRange(min=1), help="Most of each set; else the preset's.")
@click.option("-m", "--max-tokens", type=click.IntRange(min=1), help="Default: the preset's.")
@click.option(
    "--condition", "conditions", multiple=True, metavar="NAME",
    help="Only this method or translation; repeatable.",
)  # fmt: skip
@dtype_option
@dictionary_option
@language_option
@click.option("--estimate", is_flag=True, help="Say how long it would take, and stop.")
@click.option("--check", type=_PATH, multiple=True, metavar="FILE", help="Check a result.")
@click.option(
    "--compare", type=_PATH, multiple=True, metavar="PATH",
    help="Compare machines: results, or folders of them; with --save.",
)  # fmt: skip
@click.option("--save", type=_PATH, metavar="FILE.html", help="The page of --compare.")
@quiet_option
def command(**given: Any) -> None:
    """Run the Polish study's experiments and tokalign's own on this machine.

    Every prompt is decoded under every condition, conditions take turns, and plain decoding is
    measured twice; a prompt on which the two differ is measured again. The output folder gets
    study.json (a result that --check accepts and others can compare), study.html and study.md.
    """
    options = Options(**given)
    if options.check:
        _check(options.check)
    elif options.compare:
        _compare(options)
    else:
        _study(options)


# -- results of others -----------------------------------------------------------------------------


def _check(paths: Sequence[Path]) -> None:
    """Print what is wrong with results. Raises: TokalignError if anything is."""
    from tokalign.evaluate.study.check import check_file

    wrong = 0
    for path in paths:
        problems = check_file(path)
        wrong += bool(problems)
        echo(f"{path}: {'not accepted' if problems else 'accepted'}")
        for problem in problems:
            echo(f"  {problem}")
    if wrong:
        raise TokalignError(
            f"{wrong} of {len(paths)} results expected to be sound are not; measure again with "
            "tokalign study, and leave the file as it is written"
        )


def _compare(options: Options) -> None:
    """Write the page that compares machines. Raises: UsageError without a place or results."""
    from tokalign.evaluate.study.check import check_file
    from tokalign.evaluate.study.result import Result, load_json
    from tokalign.report.charts import require_charts
    from tokalign.report.machines import machines_page

    if options.save is None:
        raise UsageError("--compare expects a place for its page; give --save FILE.html")
    require_charts()
    results: dict[str, Result] = {}
    for path in _result_files(options.compare):
        if problems := check_file(path):
            raise TokalignError(f"{path} is not accepted: {problems[0]}; see --check {path}")
        results[path.stem] = Result.from_json(load_json(path), name=str(path))
    if not results:
        raise UsageError("--compare found no result; give files or folders with study results")
    write_file(options.save, machines_page(results))
    options.note(f"{len(results)} results -> {options.save}")


def _result_files(paths: Sequence[Path]) -> list[Path]:
    found = []
    for path in paths:
        inside = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        found += [file for file in inside if file.name != "schema.json"]
    return found


# -- measuring -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """Models with their tables: alone, and with each draft model by its name in conditions."""

    alone: Decoder
    pairs: Mapping[str, Decoder]
    dictionaries: Mapping[str, str]

    @property
    def all(self) -> Mapping[str, Decoder]:
        """Every decoder; the empty name is for the target alone."""
        return {"": self.alone, **self.pairs}


def _study(options: Options) -> None:
    if options.target is None:
        raise UsageError(
            "nothing to study; give --target NAME, or results with --check FILE or --compare PATH"
        )
    if options.output is None:
        raise UsageError("a study expects a folder for what it measures; give --output FOLDER")
    from tokalign.report.charts import require_charts

    require_charts()
    loaded = _load(options, options.target)
    target = loaded.alone.target.tokenizer
    chosen = only(arms(options.protocol, _drafts(loaded)), options.conditions)
    prompts = study_prompts(options.files, options.protocol, target)
    from tokalign.assemble import keep_loaded
    from tokalign.evaluate.measurements import MeasurementFile, read_measurements

    keep_loaded()
    _make_folder(options.output)
    curves = _curves(options, loaded)
    study = _assembled(options, loaded, chosen, prompts, curves)
    setting = _setting(options, loaded, prompts)
    file = MeasurementFile(options.output / _MEASUREMENTS, _about(setting, chosen))
    done = file.open()
    if done:
        options.note(f"{file.path}: holds {len(done):,} measurements already")
    if options.estimate:
        generations = len(study.pending(done))
        echo(f"{generations:,} generations, about {_duration(study.estimate(done))}")
        return
    with progress(len(study.pending(done)), "measuring", quiet=options.quiet) as advance:
        for measurement in study.run(done, told=partial(_tell, options)):
            file.append(measurement)
            advance(1)
    causes = _explained(options, loaded, study, chosen)
    from tokalign.evaluate.study.result import Result
    from tokalign.evaluate.study.samples import samples_of

    written = read_measurements(file.path)[1]
    result = Result(
        setting=setting,
        measured=date.fromtimestamp(file.path.stat().st_mtime).isoformat(),
        curves=curves,
        samples=tuple(samples_of(written)),
        causes=tuple(causes),
    )
    _write(options, options.output, result)


def _tell(options: Options, generations: int, seconds: float) -> None:
    options.note(
        f"{generations:,} generations to measure, about {_duration(seconds)}; stop at any time "
        "and give the same command to go on"
    )


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _make_folder(folder: Path) -> None:
    try:
        (folder / _CURVES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made ({error.strerror}); give another folder with --output"
        ) from error


def _load(options: Options, target: str) -> _Loaded:
    from tokalign.assemble import DraftingOptions, assemble, load_models
    from tokalign.runtime.methods import DEFAULT_DRAFT_TOKENS

    names = _short_names(options.draft)
    ours, *theirs = load_models([target, *options.draft], dtype=options.dtype, note=options.note)
    drafting = DraftingOptions(
        method="hybrid",  # which opens every table; each condition has a method of its own
        num_draft_tokens=DEFAULT_DRAFT_TOKENS,
        dictionary=options.dictionary,
        language=options.language,
    )
    return _Loaded(
        alone=assemble(ours, None, drafting, note=options.note),
        pairs={
            name: assemble(ours, draft, drafting) for name, draft in zip(names, theirs, strict=True)
        },
        dictionaries=_dictionary_digests(options, ours.tokenizer.fingerprint, ours.folder),
    )


def _short_names(drafts: Sequence[str]) -> list[str]:
    """The last part of each name, where these differ."""
    short = [name.rstrip("/").rpartition("/")[2] for name in drafts]
    if len(set(drafts)) < len(drafts):
        raise UsageError("the same draft model is given twice; give each --draft once")
    return short if len(set(short)) == len(short) else list(drafts)


def _dictionary_digests(options: Options, target: str, beside: Path | None) -> dict[str, str]:
    from tokalign.tables.finding import find_tables

    paths = list(options.dictionary)
    if options.language or not paths:
        paths += [path for path, _ in find_tables("dictionary", target=target, beside=beside)]
    return {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def _drafts(loaded: _Loaded) -> Drafts:
    target = loaded.alone.target.tokenizer.fingerprint
    models = {name: pair.draft for name, pair in loaded.pairs.items()}
    return Drafts(
        models=tuple(
            (name, draft is not None and draft.tokenizer.fingerprint == target)
            for name, draft in models.items()
        ),
        methods=("dictionary",) if loaded.alone.drafting.dictionary is not None else (),
    )


def _curves(options: Options, loaded: _Loaded) -> dict[str, CostCurve]:
    """A cost curve for each decoder: from the output folder, or else measured now."""
    from tokalign.cost.curve import read_curve
    from tokalign.cost.store import store_curve
    from tokalign.evaluate.calibrate import measure_curve
    from tokalign.runtime.mlx.machine import machine_of

    assert options.output is not None
    curves: dict[str, CostCurve] = {}
    for name, decoder in (loaded.pairs or {"": loaded.alone}).items():
        model = decoder.draft and decoder.draft.model
        path = options.output / _CURVES / f"{sha256(name.encode()).hexdigest()[:8]}.json"
        curve = read_curve(str(path)) if path.exists() else None
        if curve is None or curve.is_stale(machine_of(decoder.target.model, model)):
            options.note(f"measuring what passes cost{f' with {name}' if name else ''}")
            seconds = options.protocol.curve_seconds
            store_curve(measure_curve(decoder.target.model, model, budget=seconds), path)
            curve = read_curve(str(path))  # as it is rounded in the file
        curves[name] = curve
    return {"": next(iter(curves.values())).without_draft(), **curves}


def _assembled(
    options: Options,
    loaded: _Loaded,
    chosen: Sequence[Arm],
    prompts: StudyPrompts,
    curves: Mapping[str, CostCurve],
) -> Study:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.study.run import Study
    from tokalign.evaluate.study.watch import MachineWatch
    from tokalign.runtime.draft_length.knowledge import Knowledge
    from tokalign.runtime.draft_length.opening_knowledge import knowledge_from

    by_draft = {id(decoder.draft): name for name, decoder in loaded.all.items()}

    def knowledge(decoder: Decoder) -> Knowledge:
        curve = curves[by_draft[id(decoder.draft)]]
        return knowledge_from(curve, decoder.target.model, decoder.draft and decoder.draft.model)

    protocol = options.protocol
    bench = Bench(
        decoder=loaded.alone,
        others=loaded.pairs,
        prompts=prompts.by_block,
        conditions=[arm.condition for arm in chosen],
        max_tokens=protocol.max_tokens,
        seed=protocol.seed,
        knowledge=knowledge,
        watch=MachineWatch(),
    )
    return Study(protocol=protocol, arms=chosen, bench=bench)


def _setting(options: Options, loaded: _Loaded, prompts: StudyPrompts) -> Setting:
    import platform
    from importlib.metadata import version

    from tokalign.evaluate.measurements import model_fingerprint
    from tokalign.evaluate.study.result import Model, Setting
    from tokalign.evaluate.study.watch import MachineWatch, memory_gb, power_source, system_name
    from tokalign.runtime.mlx.weights import device_name, mlx_version, number_format, weight_bytes

    def described(name: str, model: Any) -> Model:
        dtype, bits = number_format(model.model)
        return Model(
            name=name,
            weights=model_fingerprint(model.folder),
            tokenizer=model.tokenizer.fingerprint,
            bytes=weight_bytes(model.model),
            bits=bits,
            dtype=dtype,
        )

    return Setting(
        chip=device_name(),
        system=system_name(),
        memory_gb=memory_gb(),
        python=platform.python_version(),
        mlx=mlx_version(),
        mlx_lm=version("mlx-lm"),
        tokalign=__version__,
        power=power_source(),
        energy=MachineWatch().measures_energy,
        target=described(str(options.target), loaded.alone.target),
        drafts={
            name: described(given, decoder.draft)
            for given, (name, decoder) in zip(options.draft, loaded.pairs.items(), strict=True)
        },
        dictionaries=loaded.dictionaries,
        prompts=prompts.digests,
        own_prompts=options.files.own,
        protocol=options.protocol,
    )


def _about(setting: Setting, chosen: Sequence[Arm]) -> dict[str, Any]:
    """Everything that has to be equal if a study is to be resumed."""
    about = asdict(setting)
    del about["power"]  # may change meanwhile, and is kept with each measurement
    return about | {"conditions": [str(arm.condition) for arm in chosen]}


def _explained(
    options: Options, loaded: _Loaded, study: Study, chosen: Sequence[Arm]
) -> list[Attribution]:
    """Why rounds ended, for some prompts: from the output folder, or else found now."""
    from tokalign.evaluate.study.attribution import Explainer, explained
    from tokalign.evaluate.study.causes import Attribution

    assert options.output is not None
    protocol = options.protocol
    conditions = [a.condition for a in chosen if explained(a.condition, loaded.pairs)]
    blocks = [
        block
        for block in study.bench.prompts
        if block.number <= protocol.explained and block.temperature == protocol.temperatures[0]
    ]
    path = options.output / _CAUSES
    found: list[Attribution] = []
    if path.exists():
        found = list(map(Attribution.from_json, json.loads(path.read_text("utf-8"))))
    known = {(one.block, one.condition) for one in found}
    wanted = [(b, c) for c in conditions for b in blocks]
    explainers = {name: Explainer(study.bench, name) for name in loaded.pairs}
    with progress(len(wanted), "explaining", quiet=options.quiet) as advance:
        for block, condition in wanted:
            if (block, condition) not in known:
                found.append(explainers[condition.draft].explain(block, condition))
                write_file(path, json.dumps([one.to_json() for one in found]))
            advance(1)
    return [one for one in found if (one.block, one.condition) in set(wanted)]


def _write(options: Options, folder: Path, result: Result) -> None:
    from tokalign.evaluate.study.check import problems_of
    from tokalign.report.study import study_page, study_summary

    saved = result.to_json()
    summary = study_summary(result)
    write_file(folder / _RESULT, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    write_file(folder / _PAGE, study_page(result))
    write_file(folder / _SUMMARY, summary)
    echo(summary, nl=False)
    for problem in problems_of(saved, name=_RESULT):
        options.note(f"not for {SHARED}: {problem}")
    options.note(f"result, page and summary -> {folder}")


SHARED = "results/"
"""The folder of the repository to which results can be contributed."""
