"""`tokalign bench`: every way to draft against plain decoding, on this machine or on texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign import __version__
from tokalign.cli.bench_results import publish, verdict_of, write_page
from tokalign.cli.command import (
    AT_LEAST_1,
    FROM_0,
    MODEL_NAME,
    PATH,
    Command,
    FilePath,
    Option,
    ReadType,
    flag,
    several,
)
from tokalign.cli.options import (
    ALIGNMENT,
    DICTIONARY,
    DRAFT,
    DRAFTER,
    DTYPE,
    FIELD,
    HTML,
    LANGUAGE,
    LIMIT,
    TEMP,
    TRUST,
)
from tokalign.cli.output import figures_table, note, paragraph, progress, show
from tokalign.cli.texts import PromptText, language_of_model, language_of_prompts, read_prompts
from tokalign.errors import UsageError
from tokalign.runtime.options import (
    AUTO,
    DEFAULT_DRAFT_TOKENS,
    METHODS,
    TRANSLATIONS,
    DraftingOptions,
    check_translation,
    choose_method,
    read_draft_tokens,
    take,
)

if TYPE_CHECKING:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import Comparison, Measurement
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.decoder import Decoder


def _read_lengths(_flag: str, text: str) -> list[int | str]:
    """Draft lengths in the order typed; one of them may be "auto". Raises: UsageError."""
    lengths = [read_draft_tokens(part.strip()) for part in text.split(",")]
    return list(dict.fromkeys(AUTO if k is None else k for k in lengths))


OPTIONS = (
    Option(
        "--target --model target",
        "With --text, its tokenizer is enough.",
        MODEL_NAME,
        required=True,
    ),
    DRAFT,
    DRAFTER,
    flag("--text", "FILEs are texts that play the target's output."),
    Option("--prompt-tokens", "How much of each text is the prompt.", FROM_0, 12),
    FIELD,
    LIMIT,
    several(
        "--method methods", "Measure only this method or translation; repeatable.", metavar="NAME"
    ),
    Option(
        "-k --num-draft-tokens lengths",
        "Tokens drafted in a round: numbers, auto, or both. Default: auto, with --text 2,4.",
        ReadType("n,n,...", _read_lengths),
    ),
    Option("-m --max-tokens", "Tokens to generate at most.", AT_LEAST_1, 64),
    TEMP,
    Option("--seed", "Seed of sampling.", click.IntRange(0, 0xFFFFFFFF), 0),
    DTYPE,
    TRUST,
    DICTIONARY,
    LANGUAGE,
    ALIGNMENT,
    HTML,
    Option(
        "--publish",
        "Also write a report for docs/machines.md.",
        FilePath(".json", mark="tokalign bench"),
    ),
    click.Argument(["files"], nargs=-1, type=PATH, metavar="[FILE]..."),
)


_DECISIVE = ("name", "k", "tokens_per_round", "speedup", "low", "high", "against_plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str
    draft: str | None
    files: tuple[Path, ...]
    text: bool
    prompt_tokens: int
    field: str
    limit: int | None
    methods: tuple[str, ...]
    lengths: Sequence[int | str]
    max_tokens: int
    temperature: float
    seed: int
    dtype: str | None
    trust_remote_code: bool
    publish: Path | None
    drafting: DraftingOptions


def read_options(values: dict[str, Any]) -> Options:
    """The command line from what click has parsed. Raises: UsageError for an unknown condition, or
    one without its draft model."""
    if values["lengths"] is None:  # as elsewhere; the texts have no costs to choose by
        values["lengths"] = [2, 4] if values["text"] else [AUTO]
    # The hybrid uses every source; each condition has a method of its own.
    options = Options(drafting=replace(take(DraftingOptions, values), method="hybrid"), **values)
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
    if options.text and "drafter" in options.methods:
        raise UsageError("--method drafter needs a target that runs; leave out --text")
    if options.text and {*options.methods} == {"plain"}:
        raise UsageError("--method plain drafts nothing that a text could judge; leave out --text")
    return options


@click.command("bench", cls=Command, params=[*OPTIONS])
def command(**values: Any) -> None:
    """Measure every way to draft against plain decoding, prompt by prompt.

    FILEs are prompts; without them, those that come with tokalign. Each output is compared with
    that of plain decoding, id by id (equal in float32, but for near ties). Plain decoding is
    measured twice: a condition is called faster only where it clears the second one, the control.
    With --text nothing but a draft model is run. A table goes to stdout, in Markdown; after Ctrl-C
    it is about the prompts before, which are not published.
    """
    html = values.pop("html")
    options = read_options(values)
    if options.text:
        from tokalign.cli.bench_texts import show_texts

        show_texts(options)
        return
    from tokalign.evaluate.comparison import compare

    about, decoder, measurements = _measured(options)
    comparison = compare(measurements)
    result = as_object(comparison, about)
    if html is not None:
        write_page(html, comparison, result)
    if options.publish is not None and about["cut_short"]:
        note(f"{options.publish} is not written, as Ctrl-C left prompts out")
    elif options.publish is not None:  # first, as stdout may be closed by now
        publish(options.publish, about, decoder, comparison, measurements)
    verdict = paragraph(verdict_of(comparison))
    show(result, lambda: f"{verdict}\n\n{figures_table(_DECISIVE, result['overall'])}")
    if comparison.ids_that_differ:
        rarer = "" if about["dtype"] == "float32" else "; --dtype float32 makes that rare"
        note(
            f"{comparison.ids_that_differ} ids differ from plain decoding: the last bit of a pass, "
            f"which may depend on its rows, decides where two ids are nearly equal{rarer}"
        )
    if about["cut_short"]:
        raise KeyboardInterrupt


def _measured(options: Options) -> tuple[Mapping[str, Any], Decoder, Sequence[Measurement]]:
    """Settings, models and what was measured."""
    from tokalign.api.assemble import choose_dtype, keep_loaded, load_decoder

    read = partial(read_prompts, options.files, field=options.field, limit=options.limit)
    language = language_of_prompts(options.drafting.languages)
    # Files are read before models are loaded. The language of the model is known afterwards.
    texts = read(language=language) if options.files or language is not None else []
    from tokalign.runtime.mlx.machine import device_name, mlx_version

    decoder = load_decoder(
        options.target,
        options.draft,
        replace(options.drafting, num_draft_tokens=DEFAULT_DRAFT_TOKENS),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        note=note,
    )
    keep_loaded()
    if not texts:
        target = decoder.target
        language = language_of_model(target.tokenizer.fingerprint, target.folder)
        note(f"prompts -> those in {language}; give FILEs for others")
        texts = read(language=language)
    for text in texts:  # packs of their languages are compiled before a clock runs
        prompt = decoder.prompt(text.text, use_template=False)
        decoder = replace(decoder, drafting=decoder.drafting.for_prompt(prompt.target))
    about = {
        "target": options.target,
        "draft": options.draft,
        "drafter": options.drafting.drafter and str(options.drafting.drafter),
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
        "language": language,
        "dtype": choose_dtype(options.dtype) or "of the weights",
        "machine": device_name(),
        "mlx": mlx_version(),
        "tokalign": __version__,
    }
    bench, measurements = _bench(options, decoder, texts), []
    count, each = len(bench.prompts), len(bench.conditions)
    with suppress(KeyboardInterrupt), progress(count * each, "measuring") as advance:
        for measurement in bench.run():
            measurements.append(measurement)
            advance(1)
    if not (whole := len(measurements) // each):
        raise KeyboardInterrupt
    measurements = measurements[: whole * each]  # prompts under all conditions
    measurements.sort(key=lambda one: bench.conditions.index(one.condition))
    about["cut_short"] = whole < count
    return about, decoder, measurements


def _bench(options: Options, decoder: Decoder, texts: Sequence[PromptText]) -> Bench:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import conditions_of
    from tokalign.runtime.draft.opening_knowledge import opening_knowledge
    from tokalign.runtime.mlx.sampling import Sampling

    draft, dictionary = decoder.draft, decoder.drafting.dictionary
    for name in options.methods:
        choose_method(
            name if name in METHODS else "draft",
            draft=draft is not None,
            dictionary=dictionary is not None,
            drafter=decoder.drafter is not None,
        )
    say_once = cache(note)
    return Bench(
        decoder=decoder,
        prompts={prompt.block: partial(_prompt, prompt) for prompt in texts},
        conditions=conditions_of(
            decoder.drafting,
            options.methods or None,
            lengths=options.lengths,
            pair=None if draft is None else (decoder.target.tokenizer, draft.tokenizer),
            with_drafter=decoder.drafter is not None,
        ),
        max_tokens=options.max_tokens,
        sampler=Sampling(temperature=options.temperature, seed=options.seed),
        seed=options.seed,
        knowledge=lambda loaded: opening_knowledge(
            loaded.target.model, *loaded.drafting_models, heads=loaded.heads, note=say_once
        ),
    )


def _prompt(prompt: PromptText, decoder: Decoder) -> Prompt:
    return decoder.prompt(prompt.text, use_template=not prompt.window)


def as_object(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and every figure of every row, ready for JSON."""
    return {
        "about": dict(about),
        "ids_that_differ": comparison.ids_that_differ,
        "overall": [row.figures() for row in comparison.overall],
        "sets": {name: [row.figures() for row in rows] for name, rows in comparison.sets.items()},
    }
