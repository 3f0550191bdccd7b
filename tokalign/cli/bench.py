"""`tokalign bench`: every way to draft against plain decoding, on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokalign import __version__
from tokalign.atomic_file import require_writable, write_file
from tokalign.cli.drafting_options import (
    MODEL_HELP,
    alignment_option,
    dictionary_option,
    draft_model_option,
    drafter_option,
    dtype_option,
    language_option,
)
from tokalign.cli.idle_options import all_but, flag_of, refuse_idle, refuse_idle_drafting
from tokalign.cli.option_types import NAME, PATH, FiniteRange
from tokalign.cli.output import echo, json_option, note, progress, quiet_option, to_json
from tokalign.cli.texts import PromptText, field_option, limit_option, read_prompts
from tokalign.errors import UsageError
from tokalign.evaluate.measurements import (
    BASELINES,
    PLAIN,
    Condition,
    Measurement,
    MeasurementFile,
    model_fingerprint,
    read_measurements,
)
from tokalign.runtime.methods import (
    DEFAULT_DRAFT_TOKENS,
    METHODS,
    TRANSLATIONS,
    check_translation,
    choose_method,
    read_draft_tokens,
)
from tokalign.shipped import LANGUAGES, POLISH

if TYPE_CHECKING:
    from tokalign.cost.curve import CostCurve, Machine
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import Comparison
    from tokalign.runtime.decoder import Decoder, Prompt

FORMATS = ("table", "md", "csv", "json", "html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str | None
    draft: str | None
    prompts: tuple[Path, ...]
    windows: tuple[Path, ...]
    prompt_language: str | None
    field: str
    limit: int | None
    conditions: tuple[str, ...]
    num_draft_tokens: str
    max_tokens: int
    temp: float
    seed: int
    repeats: int
    dtype: str | None
    drafter: Path | None
    dictionary: tuple[Path, ...]
    language: tuple[str, ...]
    alignment: Path | None
    window_tokens: int | None
    ignore_chat_template: bool
    results: Path | None
    form: str
    save: tuple[Path, ...]
    as_json: bool
    quiet: bool

    def note(self, message: str) -> None:
        """Print a line on stderr unless `quiet`."""
        note(message, quiet=self.quiet)


@click.command("bench")
@click.option("--target", "--model", "target", type=NAME, metavar="NAME", help=MODEL_HELP)
@draft_model_option
@click.option(
    "--prompts", type=PATH, multiple=True, metavar="FILE", help="User messages; repeatable."
)
@click.option(
    "--windows", type=PATH, multiple=True, metavar="FILE", help="Texts to continue; repeatable."
)
@click.option(
    "--prompt-language",
    metavar="CODE",
    help=f"Without files, the language of the prompts: {', '.join(LANGUAGES)}. Default: the first "
    f"of --language, else {POLISH}.",
)
@field_option
@limit_option
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="NAME",
    help="Measure only this method or translation; repeatable.",
)
@click.option(
    "-k",
    "--num-draft-tokens",
    default="2,4",
    metavar="N,N,...",
    help="Tokens drafted in a round: numbers, auto, or both.",
)
@click.option(
    "-m",
    "--max-tokens",
    type=click.IntRange(min=1),
    default=64,
    help="Tokens to generate at most.",
)
@click.option(
    "--temp",
    type=FiniteRange(min=0),
    default=0.0,
    help="Sampling temperature; 0 is greedy decoding.",
)
@click.option("--seed", type=click.IntRange(0, 0xFFFFFFFF), default=0, help="Seed of sampling.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    help="How often each prompt is measured.",
)
@dtype_option
@drafter_option
@dictionary_option
@language_option
@alignment_option
@click.option(
    "--window-tokens",
    type=click.IntRange(min=1),
    help="Target tokens of each text that are given as the prompt. Default: all.",
)
@click.option(
    "--ignore-chat-template", is_flag=True, help="Use the text as it is, without a template."
)
@click.option(
    "--results",
    type=PATH,
    metavar="FILE.jsonl",
    help="Keep the measurements here; a killed run resumes from them.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    help="The form of what goes to stdout.",
)
@click.option(
    "--save",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Also write a .md, .csv, .json or .html file; repeatable.",
)
@json_option
@quiet_option
def command(**given: Any) -> None:
    """Measure every way to draft against plain decoding, prompt by prompt.

    Conditions take turns, so that a slow minute of the machine affects all of them, and each output
    is compared with that of plain decoding, id by id (equal in float32). Plain decoding is measured
    twice: a condition is called faster only where it clears the second one, the control. Without
    prompts the thirty of benchmarks/prompts are used. Without --target, the measurements in
    --results are shown.
    """
    options = Options(**given)
    if options.target is None:
        shown = all_but("results", "form", "save", "as_json", "quiet")
        refuse_idle(shown, without="--target NAME")
    if options.as_json:
        refuse_idle(("form",), beside="--json")
    if options.prompts or options.windows:
        refuse_idle(("prompt_language",), beside="--prompts FILE or --windows FILE")
    else:
        refuse_idle(("field",), without="--prompts FILE or --windows FILE")
    if options.prompts and not options.windows:
        refuse_idle(("window_tokens",), without="--windows FILE")
    if options.windows and not options.prompts:
        refuse_idle(("ignore_chat_template",), without="--prompts FILE")
    refuse_idle_drafting()
    forms = ["json" if options.as_json else options.form, *map(_form, options.save)]
    if "html" in forms:
        from tokalign.report.charts import require_charts

        require_charts()
    for path in options.save:
        require_writable(path)
    about, measurements, curve = _measured(options)
    from tokalign.evaluate.comparison import compare

    comparison = compare(measurements)
    about = {"command": _command_line(click.get_current_context()), **about}
    for path, form in zip(options.save, forms[1:], strict=True):
        write_file(path, _written(form, comparison, about, curve))
    echo(_written(forms[0], comparison, about, curve), nl=False)
    if comparison.ids_that_differ:
        options.note(
            f"{comparison.ids_that_differ} ids differ from plain decoding: in half precision the "
            "last bit may depend on the number of rows of a pass; --dtype float32 avoids that"
        )


def _command_line(context: click.Context) -> str:
    """The command as typed, for repeating it."""
    words = ["tokalign", "bench"]
    for option in context.command.params:
        name, typed = option.name or "", ParameterSource.COMMANDLINE
        if context.get_parameter_source(name) is typed and name not in ("form", "quiet"):
            value = context.params[name]
            for one in value if isinstance(value, tuple) else (value,):
                words += [flag_of(option)] if one is True else [flag_of(option), str(one)]
    return shlex.join(words)


def _measured(
    options: Options,
) -> tuple[Mapping[str, Any], Sequence[Measurement], CostCurve | None]:
    """What was measured, the measurements asked for, and the machine's cost curve if it is known.

    Measurements are taken from the file and from this run.
    """
    from tokalign.assemble import choose_dtype, keep_loaded, load_decoder
    from tokalign.drafting_options import DraftingOptions

    if options.target is None:
        if options.results is None:
            raise UsageError("nothing to measure or to show; give --target NAME or --results FILE")
        return *read_measurements(options.results), None
    lengths = _lengths(options.num_draft_tokens)
    _check_conditions(options)
    texts = read_prompts(
        options.prompts,
        options.windows,
        field=options.field,
        limit=options.limit,
        repeats=options.repeats,
        language=_language_of_prompts(options),
    )
    from tokalign.cost.store import find_curve
    from tokalign.runtime.mlx.machine import machine_of
    from tokalign.runtime.mlx.sampling import Sampling

    decoder = load_decoder(
        options.target,
        options.draft,
        DraftingOptions(
            method="hybrid",  # which uses every source; each condition has a method of its own
            num_draft_tokens=DEFAULT_DRAFT_TOKENS,
            drafter=options.drafter,
            dictionary=options.dictionary,
            language=options.language,
            alignment=options.alignment,
        ),
        dtype=options.dtype,
        sampler=Sampling(temperature=options.temp, seed=options.seed),
        note=options.note,
    )
    keep_loaded()
    machine = machine_of(decoder.target.model, decoder.drafting_model)
    about = _about(options, decoder, machine, choose_dtype(options.dtype))
    bench = _bench(options, decoder, texts, lengths)
    file = MeasurementFile(options.results, about) if options.results else None
    return about, _run(bench, file, options), find_curve(machine)


def _run(bench: Bench, file: MeasurementFile | None, options: Options) -> list[Measurement]:
    """Take from the file what it has of the schedule, and measure the rest."""
    done = file.open() if file else []
    if done:
        options.note(f"{options.results}: holds {len(done):,} measurements already")
    wanted = list(bench.schedule())
    found = [m for m in done if (m.block, m.condition) in set(wanted)]
    with progress(len(wanted) - len(found), "measuring", quiet=options.quiet) as advance:
        for measurement in bench.run(found):
            if file:
                file.append(measurement)
            found.append(measurement)
            advance(1)
    return found


def _language_of_prompts(options: Options) -> str:
    chosen = options.prompt_language
    if chosen is None and options.language:
        chosen = options.language[0].partition(",")[0]
    if chosen is None and not options.prompts and not options.windows:
        options.note(f"prompts -> those in {POLISH}; --prompt-language CODE chooses others")
    return POLISH if chosen is None else chosen


def _lengths(typed: str) -> list[int | str]:
    """Draft lengths in the order typed; one of them may be "auto". Raises: UsageError."""
    lengths = [read_draft_tokens(part.strip()) for part in typed.split(",")]
    return list(dict.fromkeys("auto" if k is None else k for k in lengths))


def _check_conditions(options: Options) -> None:
    """Raises: UsageError for a condition that there is not, or not without a draft model."""
    for name in options.conditions:
        try:
            check_translation(None if name in METHODS else name)
        except UsageError as error:
            raise UsageError(
                f"there is no condition {name!r}; choose a method ({', '.join(METHODS)}) or a "
                f"translation ({', '.join(TRANSLATIONS)})"
            ) from error
        if options.draft is None and (name == "draft" or name not in METHODS):
            raise UsageError(f"--condition {name} needs a draft model; give --draft NAME")


def _bench(
    options: Options, decoder: Decoder, texts: Sequence[PromptText], lengths: Sequence[int | str]
) -> Bench:
    from tokalign.evaluate.bench import Bench, conditions_of
    from tokalign.runtime.draft_length.opening_knowledge import opening_knowledge

    target, draft = decoder.target, decoder.draft
    say_once = cache(options.note)
    pair = None if draft is None else (target.tokenizer, draft.tokenizer)
    conditions = conditions_of(
        decoder.drafting, lengths=lengths, pair=pair, with_drafter=decoder.drafter is not None
    )
    if options.conditions:
        names = [name for name in options.conditions if name != PLAIN]
        for name in names:
            choose_method(
                name if name in METHODS else "draft",
                draft=draft is not None,
                dictionary=decoder.drafting.dictionary is not None,
                drafter=decoder.drafter is not None,
            )
        conditions = [*BASELINES, *(Condition(name, k) for name in names for k in lengths)]
    return Bench(
        decoder=decoder,
        prompts={one.block: partial(_prompt, options, one) for one in texts},
        conditions=conditions,
        max_tokens=options.max_tokens,
        seed=options.seed,
        knowledge=lambda _: opening_knowledge(
            target.model, decoder.drafter if draft is None else draft.model, note=say_once
        ),
    )


def _prompt(options: Options, one: PromptText, decoder: Decoder) -> Prompt:
    use_template = not (one.window or options.ignore_chat_template)
    prompt = decoder.prompt(one.text, use_template=use_template)
    if one.window and options.window_tokens:
        return replace(prompt, target=prompt.target[: options.window_tokens], draft=None)
    return prompt


def _about(
    options: Options, decoder: Decoder, machine: Machine, dtype: str | None
) -> dict[str, Any]:
    """Everything that has to be equal if measurements are to be compared."""
    from tokalign.runtime.mlx.weights import content_fingerprint

    drafter = decoder.drafter
    loaded = ((options.target, decoder.target), (options.draft, decoder.draft))
    models = [f"{name} ({model_fingerprint(m.folder)})" for name, m in loaded if m and m.folder]
    return {
        "target": models[0],
        "draft": models[1] if len(models) > 1 else None,
        **({} if drafter is None else {"drafter": content_fingerprint(drafter)[:16]}),
        "max_tokens": options.max_tokens,
        "temperature": options.temp,
        "seed": options.seed,
        "dtype": dtype or "of the weights",
        "chat_template": not options.ignore_chat_template,
        "window_tokens": options.window_tokens or "all",
        "machine": machine.device,
        "mlx": machine.mlx,
        "tokalign": __version__,
    }


def _form(path: Path) -> str:
    """The format of a file, from the ending of its name. Raises: UsageError."""
    form = path.suffix.removeprefix(".")
    if form not in FORMATS or form == "table":
        raise UsageError(f"{path}: give a file that ends in .md, .csv, .json or .html to --save")
    return form


def _written(
    form: str, comparison: Comparison, about: Mapping[str, Any], curve: CostCurve | None
) -> str:
    from tokalign.report import tables
    from tokalign.report.bench import bench_page

    match form:
        case "html":
            return bench_page(comparison, about, curve=curve)
        case "json":
            return to_json(tables.as_object(comparison, about)) + "\n"
        case "csv":
            return tables.comma_separated(comparison)
        case "md":
            return tables.markdown(comparison, about)
    return tables.aligned([tables.HEAD, *map(tables.cells, comparison.overall)])
