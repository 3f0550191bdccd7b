"""`tokalign bench`: every way to draft against plain decoding, on this machine or on texts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign import __version__
from tokalign.atomic_file import require_writable, write_file
from tokalign.cli.command import Command, Option, flag_of, was_typed
from tokalign.cli.option_types import AT_LEAST_1, FROM_0, NAME, PATH, FilePath, FiniteRange
from tokalign.cli.options import (
    ALIGNMENT,
    DICTIONARY,
    DRAFT,
    DRAFTER,
    DTYPE,
    FIELD,
    IGNORE_CHAT_TEMPLATE,
    LANGUAGE,
    LIMIT,
    with_conditions,
)
from tokalign.cli.output import echo, note, progress, to_json
from tokalign.cli.texts import PromptText, read_prompts
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

SAVED = (".md", ".csv", ".json", ".html")
"""What `--save` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str | None
    draft: str | None
    files: tuple[Path, ...]
    text: bool
    ignore_chat_template: bool
    prompt_tokens: int | None
    prompt_language: str | None
    field: str
    limit: int | None
    methods: tuple[str, ...]
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
    curves: tuple[str, ...]
    trace: Path | None
    results: Path | None
    save: tuple[Path, ...]
    as_json: bool
    quiet: bool

    def note(self, message: str) -> None:
        """Print a line on stderr unless `quiet`."""
        note(message, quiet=self.quiet)

    @property
    def lengths(self) -> list[int | str]:
        """Draft lengths in the order typed; one of them may be "auto". Raises: UsageError."""
        lengths = [read_draft_tokens(part.strip()) for part in self.num_draft_tokens.split(",")]
        return list(dict.fromkeys("auto" if k is None else k for k in lengths))


_OPTIONS = (
    Option(
        "--target --model target", "The model; with --text, its tokenizer is enough.", type=NAME
    ),
    DRAFT,
    with_conditions(DRAFTER, excludes="--text"),
    Option(
        "--text", "FILEs are texts that play the target's output.", is_flag=True, needs="--target"
    ),
    with_conditions(IGNORE_CHAT_TEMPLATE, needs="FILE", excludes="--text"),
    Option(
        "--prompt-tokens",
        "How much of each text is the prompt. Default: all; with --text, 12.",
        type=FROM_0,
        needs=("--text", "--ignore-chat-template"),
    ),
    Option(
        "--prompt-language",
        f"The language of tokalign's own prompts: {', '.join(LANGUAGES)}. Default: the first "
        f"of --language, else {POLISH}.",
        metavar="CODE",
        needs="--target",
        excludes="FILE",
        rare=True,
    ),
    FIELD,
    with_conditions(LIMIT, needs="--target"),
    Option(
        "--method methods",
        "Measure only this method or translation; repeatable.",
        multiple=True,
        metavar="NAME",
        needs="--target",
    ),
    Option(
        "-k --num-draft-tokens",
        "Tokens drafted in a round: numbers, auto, or both.",
        default="2,4",
        metavar="N,N,...",
        needs="--target",
    ),
    Option(
        "-m --max-tokens",
        "Tokens to generate at most.",
        type=AT_LEAST_1,
        default=64,
        needs="--target",
        excludes="--text",
    ),
    Option(
        "--temp",
        "Sampling temperature; 0 is greedy.",
        type=FiniteRange(min=0),
        default=0.0,
        needs="--target",
        excludes="--text",
    ),
    Option(
        "--seed",
        "Seed of sampling.",
        type=click.IntRange(0, 0xFFFFFFFF),
        default=0,
        needs="--target",
        excludes="--text",
    ),
    Option(
        "--repeats",
        "How often each prompt is measured.",
        type=AT_LEAST_1,
        default=1,
        needs="--target",
        excludes="--text",
    ),
    with_conditions(DTYPE, needs="--target"),
    with_conditions(DICTIONARY, needs="--target"),
    with_conditions(LANGUAGE, needs="--target"),
    ALIGNMENT,
    Option(
        "--cost curves",
        "Also estimate the speed-up under this shipped or measured curve; repeatable.",
        type=NAME,
        multiple=True,
        metavar="CURVE",
        needs="--text",
    ),
    Option(
        "--trace",
        "Keep what was proposed at every position of the texts.",
        type=FilePath(".jsonl"),
        needs="--text",
        rare=True,
    ),
    Option(
        "--results",
        "Keep the measurements here; a killed run resumes from them.",
        type=FilePath(".jsonl"),
        excludes="--text",
    ),
    Option(
        "--save",
        "Also write a .md, .csv, .json or .html file; repeatable.",
        type=FilePath(*SAVED),
        multiple=True,
        excludes="--text",
    ),
    click.Argument(["files"], nargs=-1, type=PATH, metavar="[FILE]..."),
)


@click.command("bench", cls=Command, params=[*_OPTIONS])
def command(**given: Any) -> None:
    """Measure every way to draft against plain decoding, prompt by prompt.

    FILEs are prompts; without them, those that come with tokalign. Each
    output is compared with that of plain decoding, id by id (equal in float32). Plain decoding is
    measured twice: a condition is called faster only where it clears the second one, the control.
    With --text nothing but a draft model is run. Without --target, what is in --results is shown.
    """
    options = Options(**given)
    _check_conditions(options)
    if options.text:
        from tokalign.cli.bench_texts import show_texts

        show_texts(options)
        return
    forms = [path.suffix for path in options.save]
    for path in options.save:
        require_writable(path)
    about, measurements, curve = _measured(options)
    from tokalign.evaluate.comparison import compare

    comparison = compare(measurements)
    about = {"command": _command_line(click.get_current_context()), **about}
    for path, form in zip(options.save, forms, strict=True):
        write_file(path, _written(form, comparison, about, curve))
    shown = ".json" if options.as_json else "table"
    echo(_written(shown, comparison, about, curve), nl=False)
    if comparison.ids_that_differ:
        options.note(
            f"{comparison.ids_that_differ} ids differ from plain decoding: in half precision the "
            "last bit may depend on the number of rows of a pass; --dtype float32 avoids that"
        )


def _command_line(context: click.Context) -> str:
    """The command as typed, for repeating it."""
    words = ["tokalign", "bench"]
    for option in context.command.params:
        if was_typed(context, option) and option.name not in ("as_json", "quiet"):
            value = context.params[option.name or ""]
            flag = [flag_of(option)] if isinstance(option, click.Option) else []
            for one in value if isinstance(value, tuple) else (value,):
                words += flag if one is True else [*flag, str(one)]
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
    lengths, plain = options.lengths, options.ignore_chat_template
    texts = read_prompts(
        () if plain else options.files,
        options.files if plain else (),
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
    if chosen is None and not options.files:
        options.note(f"prompts -> those in {POLISH}; --prompt-language CODE chooses others")
    return POLISH if chosen is None else chosen


def _check_conditions(options: Options) -> None:
    """Raises: UsageError for a condition that there is not, or not without a draft model."""
    for name in options.methods:
        try:
            check_translation(None if name in METHODS else name)
        except UsageError as error:
            raise UsageError(
                f"there is no condition {name!r}; choose a method ({', '.join(METHODS)}) or a "
                f"translation ({', '.join(TRANSLATIONS)})"
            ) from error
        if options.draft is None and (name == "draft" or name not in METHODS):
            raise UsageError(f"--method {name} needs a draft model; give --draft NAME")


def _bench(
    options: Options, decoder: Decoder, texts: Sequence[PromptText], lengths: Sequence[int | str]
) -> Bench:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.conditions import conditions_of
    from tokalign.runtime.draft_length.opening_knowledge import opening_knowledge

    target, draft = decoder.target, decoder.draft
    say_once = cache(options.note)
    pair = None if draft is None else (target.tokenizer, draft.tokenizer)
    conditions = conditions_of(
        decoder.drafting, lengths=lengths, pair=pair, with_drafter=decoder.drafter is not None
    )
    if options.methods:
        names = [name for name in options.methods if name != PLAIN]
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
    prompt = decoder.prompt(one.text, use_template=not one.window)
    if one.window and options.prompt_tokens:
        return replace(prompt, target=prompt.target[: options.prompt_tokens], draft=None)
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
        "prompt_tokens": options.prompt_tokens or "all",
        "machine": machine.device,
        "mlx": machine.mlx,
        "tokalign": __version__,
    }


def _written(
    form: str, comparison: Comparison, about: Mapping[str, Any], curve: CostCurve | None
) -> str:
    from tokalign.report import tables
    from tokalign.report.bench import bench_page

    match form:
        case ".html":
            return bench_page(comparison, about, curve=curve)
        case ".json":
            return to_json(tables.as_object(comparison, about)) + "\n"
        case ".csv":
            return tables.comma_separated(comparison)
        case ".md":
            return tables.markdown(comparison, about)
    return tables.aligned([tables.HEAD, *map(tables.cells, comparison.overall)])
