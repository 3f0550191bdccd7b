"""`tokalign bench`: every way to draft against plain decoding, on this machine or on texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from tokalign import __version__
from tokalign.cli.bench_options import OPTIONS, Options, read_options
from tokalign.cli.command import Command
from tokalign.cli.output import note, progress, show
from tokalign.cli.texts import PromptText, language_of_model, read_prompts
from tokalign.evaluate.measurements import (
    BASELINES,
    PLAIN,
    Condition,
    Measurement,
)
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, METHODS, choose_method

if TYPE_CHECKING:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import Comparison, Row
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.decoder import Decoder


@click.command("bench", cls=Command, params=[*OPTIONS])
def command(**given: Any) -> None:
    """Measure every way to draft against plain decoding, prompt by prompt.

    FILEs are prompts; without them, those that come with tokalign. Each
    output is compared with that of plain decoding, id by id (equal in float32). Plain decoding is
    measured twice: a condition is called faster only where it clears the second one, the control.
    With --text nothing but a draft model is run. A table goes to stdout, in Markdown.
    """
    options = read_options(given)
    if options.text:
        from tokalign.cli.bench_texts import show_texts

        show_texts(options)
        return
    about, measurements = _measured(options)
    from tokalign.evaluate.comparison import compare

    comparison = compare(measurements)
    rows = map(cells, comparison.overall)
    show(
        as_object(comparison, about),
        lambda: "\n".join(markdown_rows(HEAD, rows)),
    )
    if comparison.ids_that_differ:
        note(
            f"{comparison.ids_that_differ} ids differ from plain decoding: in half precision the "
            "last bit may depend on the number of rows of a pass; --dtype float32 avoids that"
        )


def _measured(options: Options) -> tuple[Mapping[str, Any], Sequence[Measurement]]:
    """What was measured, and the measurements."""
    from tokalign.api.assemble import choose_dtype, keep_loaded, load_decoder

    lengths, plain = options.lengths, options.ignore_chat_template
    texts_in = partial(
        read_prompts,
        () if plain else options.files,
        options.files if plain else (),
        field=options.field,
        limit=options.limit,
    )
    language = next(iter(options.drafting.languages), None)
    # What cannot be read is said before models are loaded; their language is known afterwards.
    texts = texts_in(language=language) if options.files or language is not None else []
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.mlx.weights import device_name, mlx_version

    decoder = load_decoder(
        options.target,
        options.draft,
        replace(options.drafting, num_draft_tokens=DEFAULT_DRAFT_TOKENS),
        dtype=options.dtype,
        sampler=Sampling(temperature=options.temp, seed=options.seed),
        note=note,
    )
    keep_loaded()
    if not texts:
        target = decoder.target
        language = language_of_model(target.tokenizer.fingerprint, target.folder)
        note(f"prompts -> those in {language}; --language CODE chooses others")
        texts = texts_in(language=language)
    for one in texts:  # packs of their languages are compiled before a clock runs
        prompt = decoder.prompt(one.text, use_template=False)
        decoder = replace(decoder, drafting=decoder.drafting.for_prompt(prompt.target))
    about = {
        "target": options.target,
        "draft": options.draft,
        "drafter": options.drafting.drafter and str(options.drafting.drafter),
        "max_tokens": options.max_tokens,
        "temperature": options.temp,
        "seed": options.seed,
        "dtype": choose_dtype(options.dtype) or "of the weights",
        "chat_template": not options.ignore_chat_template,
        "prompt_tokens": options.prompt_tokens or "all",
        "machine": device_name(),
        "mlx": mlx_version(),
        "tokalign": __version__,
    }
    bench = _bench(options, decoder, texts, lengths)
    total = len(bench.prompts) * len(bench.conditions)
    with progress(total, "measuring") as advance:
        found = []
        for measurement in bench.run():
            found.append(measurement)
            advance(1)
    return about, found


def _bench(
    options: Options, decoder: Decoder, texts: Sequence[PromptText], lengths: Sequence[int | str]
) -> Bench:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import conditions_of
    from tokalign.runtime.draft_length.opening_knowledge import opening_knowledge

    target, draft = decoder.target, decoder.draft
    say_once = cache(note)
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


# -- tables ----------------------------------------------------------------------------------------

HEAD = (
    "condition", "k", "acceptance", "tokens/round", "passes/round", "host ms", "tokens/s",
    "speed-up (quartiles)", "than plain", "ids that differ",
)  # fmt: skip
"""The columns that `cells` fills; `docs/metrics.md` says what they mean."""

TEXT_COLUMNS = 2


def cells(row: Row) -> tuple[str, ...]:
    """One condition as text, one cell per column of `HEAD`; an en dash if there is no figure."""
    drafts, timed = row.condition.drafts, row.timed
    compared = timed and row.condition.name != PLAIN
    return (
        row.condition.name,
        "" if row.condition.k is None else str(row.condition.k),
        f"{row.acceptance:.3f}" if drafts else "–",
        f"{row.tokens_per_round:.3f}",
        f"{row.draft_passes_per_round:.2f}",
        f"{row.host_ms:.2f}",
        f"{row.tokens_per_second:.1f}" if timed else "–",
        f"{row.speedup:.2f} ({row.low:.2f}–{row.high:.2f})" if compared else "–",
        row.against_plain or "–",
        str(row.ids_that_differ),
    )


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, aligned: the first `TEXT_COLUMNS` are text, others numbers."""
    lines = [head, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    dashes = ["-" * width for width in widths]
    rule = [*dashes[:TEXT_COLUMNS], *(f"{dash[1:]}:" for dash in dashes[TEXT_COLUMNS:])]
    padded = [
        [
            cell.ljust(width) if column < TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in lines
    ]
    return [f"| {' | '.join(row)} |" for row in [padded[0], rule, *padded[1:]]]


def as_object(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and every figure of every row, ready for JSON: no infinite numbers."""
    return {
        "about": dict(about),
        "ids_that_differ": comparison.ids_that_differ,
        "overall": [_row(row) for row in comparison.overall],
        "sets": {name: [_row(row) for row in rows] for name, rows in comparison.sets.items()},
    }


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    del values["timed"]
    return {**values.pop("condition"), **{name: _finite(v) for name, v in values.items()}}


def _finite(value: Any) -> Any:
    """Round floats to six places; infinite ones become None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    return value
